import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactional producers that do what they are told, a line of standard input at a time.
 *
 * A line is a producer's name, a command and its arguments, separated by spaces. It is answered by one line: "ok", with an offset if
 * there is one, or the class of the exception and its message.
 */
public final class TransactionalProducer {
    private static final Map<String, KafkaProducer<String, String>> PRODUCERS = new HashMap<>();

    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = perform(line.split(" "));
            } catch (ExecutionException error) {
                answer = error.getCause().getClass().getSimpleName() + " " + error.getCause().getMessage();
            } catch (Exception error) {
                answer = error.getClass().getSimpleName() + " " + error.getMessage();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
        PRODUCERS.values().forEach(producer -> producer.close(java.time.Duration.ZERO));
    }

    private static String perform(String[] words) throws Exception {
        String name = words[0];
        KafkaProducer<String, String> producer = PRODUCERS.get(name);
        switch (words[1]) {
            case "open" -> PRODUCERS.put(name, open(words[2], words[3], words[4]));
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> {
                int partition = Integer.parseInt(words[3]);
                return "ok " + producer.send(new ProducerRecord<>(words[2], partition, null, words[4])).get().offset();
            }
            case "offsets" -> producer.sendOffsetsToTransaction(
                Map.of(
                    new TopicPartition(words[3], Integer.parseInt(words[4])),
                    new OffsetAndMetadata(Long.parseLong(words[5]))),
                new ConsumerGroupMetadata(words[2]));
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            case "close" -> producer.close(java.time.Duration.ZERO);
            default -> throw new IllegalArgumentException(words[1]);
        }
        return "ok";
    }

    private static KafkaProducer<String, String> open(String bootstrap, String transactionalId, String timeoutMs) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", transactionalId);
        config.put("transaction.timeout.ms", timeoutMs);
        config.put("max.block.ms", "20000");
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    private TransactionalProducer() {
    }
}
