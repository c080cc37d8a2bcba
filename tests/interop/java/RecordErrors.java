import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends one batch per line ("bootstrap topic count", every third record without a key) and prints each record's outcome. */
public class RecordErrors {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] asked = lines.nextLine().split(" ");
            Properties settings = new Properties();
            settings.put("bootstrap.servers", asked[0]);
            settings.put("linger.ms", "300");
            settings.put("delivery.timeout.ms", "30000");
            settings.put("request.timeout.ms", "20000");
            List<CompletableFuture<String>> outcomes = new ArrayList<>();
            try (KafkaProducer<String, String> producer =
                    new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
                for (int number = 0; number < Integer.parseInt(asked[2]); number++) {
                    CompletableFuture<String> outcome = new CompletableFuture<>();
                    outcomes.add(outcome);
                    String key = number % 3 == 0 ? null : "key";
                    producer.send(new ProducerRecord<>(asked[1], 0, key, "" + number), (metadata, error) ->
                        outcome.complete(error == null ? "ok" : error.getClass().getSimpleName() + ":" + error.getMessage()));
                }
            }
            List<String> told = new ArrayList<>();
            for (CompletableFuture<String> outcome : outcomes) {
                told.add(outcome.join().replace("|", "/").replace("\n", " "));
            }
            System.out.println(String.join("|", told));
        }
    }
}
