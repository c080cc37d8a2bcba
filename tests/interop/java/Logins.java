import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.StringReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Logs in, produces one record and fetches it.
 *
 * Each line of standard input is a run: base64 fields, separated by spaces: properties of the client, topic, value. Each is answered by
 * one line: "ok" and the value that came back, or the class of the exception and its message.
 */
public final class Logins {
    private static final int WAIT_S = 30;

    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = Arrays.stream(line.split(" ", -1))
                .map(field -> new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8))
                .toArray(String[]::new);
            String answer;
            try {
                answer = "ok " + roundTrip(fields[0], fields[1], fields[2]);
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer = cause.getClass().getSimpleName() + " " + cause.getMessage();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
    }

    private static String roundTrip(String settings, String topic, String value) throws Exception {
        Properties properties = new Properties();
        properties.load(new StringReader(settings));
        String tokens = properties.getProperty("sasl.oauthbearer.token.endpoint.url");
        if (tokens != null) {
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", tokens);
        }
        properties.put("max.block.ms", Integer.toString(WAIT_S * 1000));
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            producer.send(new ProducerRecord<>(topic, 0, null, value)).get(WAIT_S, TimeUnit.SECONDS);
        }
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties)) {
            List<TopicPartition> all = List.of(new TopicPartition(topic, 0));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
            while (System.nanoTime() < end) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    return record.value();
                }
            }
        }
        throw new IllegalStateException("nothing came back");
    }
}
