import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;

/**
 * An application of Kafka Streams, exactly-once, that counts what it reads: with a repartition topic, a store and its changelog.
 *
 * It reads numbers from a topic and gives each a key: the number modulo KEYS. The n-th number of a key becomes "n:number" in
 * another topic, under that key. Whatever is killed, n rises by one from record to record of a key, and each number is there once.
 *
 * Arguments: bootstrap, application id, directory of its state, input topic, output topic, keys, partitions that are counted in, and settings as name=value. A
 * line of standard input is answered by the state, and by what was thrown. "close" stops it in order.
 */
public final class Counting {
    private static volatile String thrown = "";

    public static void main(String[] words) throws Exception {
        KafkaStreams streams = new KafkaStreams(topology(words[3], words[4], Integer.parseInt(words[5]), Integer.parseInt(words[6])), settings(words));
        streams.setUncaughtExceptionHandler(error -> {
            thrown = error + " " + error.getCause();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.equals("close")) {
                streams.close(Duration.ofSeconds(60));
            }
            System.out.println((streams.state() + " " + thrown).replace('\n', ' '));
            System.out.flush();
        }
        System.exit(0);
    }

    private static Topology topology(String input, String output, int keys, int partitions) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .selectKey((ignored, number) -> Integer.toString(Integer.parseInt(number) % keys))
            .repartition(Repartitioned.<String, String>as("by-key").withNumberOfPartitions(partitions))
            .groupByKey()
            .aggregate(
                () -> "0:",
                (ignored, number, counted) -> (Integer.parseInt(counted.substring(0, counted.indexOf(':'))) + 1) + ":" + number,
                Materialized.as("counted"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    private static Properties settings(String[] words) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, words[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, words[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0"); // each number is told of
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        for (int index = 7; index < words.length; index++) {
            String[] setting = words[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        return settings;
    }

    private Counting() {
    }
}
