import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Consumers of share groups that do what they are told, a line of standard input at a time.
 *
 * A line is a consumer's name, a command and its arguments, separated by spaces. It is answered by one line: "ok", with what was asked
 * for, or the class of the exception and its message.
 */
public final class ShareConsumers {
    private static final Map<String, KafkaShareConsumer<String, String>> CONSUMERS = new HashMap<>();
    private static final Map<String, List<ConsumerRecord<String, String>>> POLLED = new HashMap<>();

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

    private static String perform(String[] words) throws Exception {
        String name = words[0];
        KafkaShareConsumer<String, String> consumer = CONSUMERS.get(name);
        switch (words[1]) {
            case "open" -> CONSUMERS.put(name, open(Arrays.asList(words).subList(2, words.length)));
            case "subscribe" -> consumer.subscribe(Arrays.asList(words).subList(2, words.length));
            case "poll" -> {
                List<ConsumerRecord<String, String>> polled = new ArrayList<>();
                consumer.poll(Duration.ofMillis(Long.parseLong(words[2]))).forEach(polled::add);
                POLLED.put(name, polled);
                StringBuilder values = new StringBuilder("ok");
                for (ConsumerRecord<String, String> record : polled) {
                    values.append(' ').append(record.value()).append(':').append(record.deliveryCount().orElse((short) 0));
                }
                return values.toString();
            }
            case "acknowledge" -> {
                for (ConsumerRecord<String, String> record : POLLED.get(name)) {
                    consumer.acknowledge(record, AcknowledgeType.valueOf(words[2].toUpperCase(Locale.ROOT)));
                }
            }
            case "commit" -> {
                for (Map.Entry<TopicIdPartition, Optional<KafkaException>> entry : consumer.commitSync().entrySet()) {
                    if (entry.getValue().isPresent()) {
                        throw entry.getValue().get();
                    }
                }
            }
            case "close" -> CONSUMERS.remove(name).close(Duration.ofSeconds(10));
            default -> throw new IllegalArgumentException(words[1]);
        }
        return "ok";
    }

    private static KafkaShareConsumer<String, String> open(List<String> settings) {
        Properties properties = new Properties();
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.put("share.acknowledgement.mode", "explicit");
        for (String setting : settings) {
            int equals = setting.indexOf('=');
            properties.put(setting.substring(0, equals), setting.substring(equals + 1));
        }
        return new KafkaShareConsumer<>(properties);
    }
}
