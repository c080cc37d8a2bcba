import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.ExactlyOnceSupport;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** A connector whose two tasks count: the first into partition 0 of the topic "numbers", the second into partition 1. */
public final class NumberSource extends SourceConnector {
    private static final int TASKS = 2;

    @Override
    public String version() {
        return "1";
    }

    @Override
    public void start(Map<String, String> settings) {
    }

    @Override
    public void stop() {
    }

    @Override
    public Class<? extends Task> taskClass() {
        return NumberTask.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        List<Map<String, String>> configs = new ArrayList<>();
        for (int number = 0; number < TASKS; number++) {
            configs.add(new HashMap<>(Map.of("number", Integer.toString(number))));
        }
        return configs;
    }

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> settings) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    /** Ten numbers at a time; where it is, it says with each, and is told when it starts again. */
    public static final class NumberTask extends SourceTask {
        private Map<String, String> place;
        private long next;

        @Override
        public String version() {
            return "1";
        }

        @Override
        public void start(Map<String, String> settings) {
            place = Map.of("number", settings.get("number"));
            Map<String, Object> found = context.offsetStorageReader().offset(place);
            next = found == null ? 0 : ((Number) found.get("next")).longValue();
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            Thread.sleep(20);
            List<SourceRecord> records = new ArrayList<>();
            for (int count = 0; count < 10; count++) {
                String value = Long.toString(next++);
                records.add(
                    new SourceRecord(
                        place, Map.of("next", next), "numbers", Integer.valueOf(place.get("number")), Schema.STRING_SCHEMA, value));
            }
            return records;
        }

        @Override
        public void stop() {
        }
    }
}
