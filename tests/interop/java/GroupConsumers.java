import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumers of groups that do what they are told, a line of standard input at a time.
 *
 * A line is a consumer's name, a command and its arguments, separated by spaces. It is answered by one line: "ok", with what was asked
 * for, or the class of the exception and its message.
 */
public final class GroupConsumers {
    private static final Map<String, KafkaConsumer<String, String>> CONSUMERS = new HashMap<>();

    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = perform(line.split(" "));
            } catch (Exception error) {
                answer = error.getClass().getSimpleName() + " " + error.getMessage();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
    }

    private static String perform(String[] words) {
        String name = words[0];
        KafkaConsumer<String, String> consumer = CONSUMERS.get(name);
        switch (words[1]) {
            case "open" -> CONSUMERS.put(name, open(Arrays.asList(words).subList(2, words.length)));
            case "subscribe" -> consumer.subscribe(Arrays.asList(words).subList(2, words.length));
            case "match" -> consumer.subscribe(new SubscriptionPattern(words[2]));
            case "poll" -> {
                StringBuilder values = new StringBuilder("ok");
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(Long.parseLong(words[2])))) {
                    values.append(' ').append(record.value());
                }
                return values.toString();
            }
            case "assignment" -> {
                StringBuilder places = new StringBuilder("ok");
                TreeSet<String> sorted = new TreeSet<>();
                for (TopicPartition partition : consumer.assignment()) {
                    sorted.add(partition.toString());
                }
                sorted.forEach(place -> places.append(' ').append(place));
                return places.toString();
            }
            case "commit" -> consumer.commitSync(Duration.ofSeconds(10));
            case "close" -> CONSUMERS.remove(name).close(Duration.ofSeconds(10));
            default -> throw new IllegalArgumentException(words[1]);
        }
        return "ok";
    }

    private static KafkaConsumer<String, String> open(List<String> settings) {
        Properties properties = new Properties();
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        for (String setting : settings) {
            int equals = setting.indexOf('=');
            properties.put(setting.substring(0, equals), setting.substring(equals + 1));
        }
        return new KafkaConsumer<>(properties);
    }
}
