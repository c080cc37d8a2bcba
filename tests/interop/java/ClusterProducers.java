import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers that write to a cluster until they are told to end: one idempotent, one transactional, each in a thread.
 *
 * Lines of standard input, each answered by one line that begins with "ok":
 *
 *   numbers BOOTSTRAP TOPIC PARTITIONS PACE_MS         begins to write 0, 1, 2… to each partition
 *   transactions BOOTSTRAP TOPIC PARTITIONS NAME SEED  begins transactions of two values in each partition; some are aborted
 *   counts                                             acknowledged records of each partition, and committed transactions
 *   end                                                waits until nothing is under way
 *   acknowledged PARTITION                             number:offset of each
 *   refused                                            what was refused, apart by ";"
 *   history                                            the outcome of each transaction: committed, aborted or unknown
 */
public final class ClusterProducers {
    private static volatile boolean stopping;
    private static final List<Thread> THREADS = new ArrayList<>();
    private static Map<Integer, Long>[] acknowledged = newMaps(0);
    private static final ConcurrentLinkedQueue<String> REFUSED = new ConcurrentLinkedQueue<>();
    private static final List<String> HISTORY = new ArrayList<>();
    private static volatile int committed;

    public static void main(String[] ignored) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = "ok " + perform(line.split(" "));
            } catch (Exception error) {
                answer = error.getClass().getSimpleName() + " " + error.getMessage();
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
        System.exit(0);
    }

    private static String perform(String[] words) throws Exception {
        StringBuilder answer = new StringBuilder();
        switch (words[0]) {
            case "numbers" -> {
                int partitions = Integer.parseInt(words[3]);
                acknowledged = newMaps(partitions);
                begin(() -> writeNumbers(words[1], words[2], partitions, Long.parseLong(words[4])));
            }
            case "transactions" -> begin(() -> writeTransactions(
                words[1], words[2], Integer.parseInt(words[3]), words[4], new Random(Long.parseLong(words[5]))));
            case "counts" -> {
                for (Map<Integer, Long> one : acknowledged) {
                    answer.append(one.size()).append(' ');
                }
                answer.append(committed);
            }
            case "end" -> {
                stopping = true;
                for (Thread thread : THREADS) {
                    thread.join();
                }
            }
            case "acknowledged" -> acknowledged[Integer.parseInt(words[1])].forEach(
                (number, offset) -> answer.append(number).append(':').append(offset).append(' '));
            case "refused" -> answer.append(String.join(";", REFUSED));
            case "history" -> answer.append(String.join(" ", HISTORY));
            default -> throw new IllegalArgumentException(words[0]);
        }
        return answer.toString().trim();
    }

    private static void begin(Runnable work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (RuntimeException error) {
                REFUSED.add("the thread has ended: " + error);
            }
        });
        THREADS.add(thread);
        thread.start();
    }

    private static void writeNumbers(String bootstrap, String topic, int partitions, long paceMs) {
        Map<String, Object> config = settings(bootstrap);
        config.put("enable.idempotence", "true");
        config.put("acks", "all");
        config.put("delivery.timeout.ms", "300000");
        config.put("max.block.ms", "300000");
        try (KafkaProducer<String, String> producer = open(config)) {
            for (int number = 0; !stopping; number++) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, topic, partition, number);
                }
                Thread.sleep(paceMs);
            }
            producer.flush();
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, int number) {
        String value = Integer.toString(number);
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            if (error == null) {
                acknowledged[partition].put(number, metadata.hasOffset() ? metadata.offset() : -1L);
            } else {
                REFUSED.add(partition + " " + number + ": " + error);
            }
        });
    }

    private static void writeTransactions(String bootstrap, String topic, int partitions, String name, Random chance) {
        Map<String, Object> config = settings(bootstrap);
        config.put("transactional.id", name);
        config.put("transaction.timeout.ms", "60000");
        config.put("max.block.ms", "10000");
        KafkaProducer<String, String> producer = null;
        while (!stopping || producer == null) {
            int number = HISTORY.size();
            String outcome = "aborted";
            try {
                if (producer == null) {
                    producer = open(config);
                    producer.initTransactions();
                }
                producer.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) {
                    for (String part : new String[] {"a", "b"}) {
                        String value = String.join(" ", name, "" + number, "" + partition, part);
                        producer.send(new ProducerRecord<>(topic, partition, null, value));
                    }
                }
                if (chance.nextDouble() < 0.8) {
                    outcome = "unknown";
                    commit(producer);
                    outcome = "committed";
                    committed++;
                } else {
                    producer.abortTransaction();
                }
            } catch (RuntimeException error) {
                // The next producer of this id ends what this one left open; a commit that was decided stands.
                producer.close(Duration.ZERO);
                producer = null;
            }
            HISTORY.add(outcome);
        }
        producer.close();
    }

    /** A commit that ran out of time may be, and is, asked for again. */
    private static void commit(KafkaProducer<String, String> producer) {
        for (int left = 2; ; left--) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                if (left == 0) {
                    throw error;
                }
            }
        }
    }

    private static Map<String, Object> settings(String bootstrap) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("linger.ms", "2");
        config.put("request.timeout.ms", "5000");
        config.put("retry.backoff.ms", "50");
        config.put("retry.backoff.max.ms", "200");
        config.put("reconnect.backoff.ms", "20");
        config.put("reconnect.backoff.max.ms", "200");
        return config;
    }

    private static KafkaProducer<String, String> open(Map<String, Object> config) {
        return new KafkaProducer<>(config, new StringSerializer(), new StringSerializer());
    }

    @SuppressWarnings("unchecked")
    private static Map<Integer, Long>[] newMaps(int count) {
        Map<Integer, Long>[] maps = new Map[count];
        for (int index = 0; index < count; index++) {
            maps[index] = new ConcurrentHashMap<>();
        }
        return maps;
    }

    private ClusterProducers() {
    }
}
