import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiKeys;

/** Answers a line for a line: "definitions KIND" with what Kafka can be set to, "versions" with what it serves, "properties FILE" with what Java reads in it. */
public class Settings {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(
                switch (words[0]) {
                    case "definitions" -> definitions(words[1]);
                    case "versions" -> versions();
                    default -> properties(words[1]);
                });
        }
    }

    private static String definitions(String kind) throws Exception {
        ConfigDef known = switch (kind) {
            case "broker" -> kafka.server.KafkaConfig.configDef();
            case "topic" -> org.apache.kafka.storage.internals.log.LogConfig.configDefCopy();
            default -> org.apache.kafka.coordinator.group.GroupConfig.CONFIG_DEF;
        };
        Set<String> dynamic = org.apache.kafka.server.config.DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS;
        Field field = org.apache.kafka.server.config.DynamicBrokerConfig.class.getDeclaredField("PER_BROKER_CONFIGS");
        field.setAccessible(true);
        Set<?> perBroker = (Set<?>) field.get(null);
        List<String> found = new ArrayList<>();
        for (Map.Entry<String, ConfigDef.ConfigKey> entry : new TreeMap<>(known.configKeys()).entrySet()) {
            ConfigDef.ConfigKey key = entry.getValue();
            boolean absent = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE || key.defaultValue == null;
            String update = perBroker.contains(key.name) ? "per-broker" : dynamic.contains(key.name) ? "cluster-wide" : "read-only";
            String value = absent ? "" : ConfigDef.convertToString(key.defaultValue, key.type);
            String bounds = key.validator == null ? "" : key.validator.toString();
            found.add(String.join(" ", key.name, key.type.name(), update, encoded(value), encoded(bounds)));
        }
        return String.join(";", found);
    }

    private static String versions() {
        List<String> found = new ArrayList<>();
        for (ApiKeys key : ApiKeys.apisForListener(ApiMessageType.ListenerType.BROKER)) {
            key.toApiVersion(false).ifPresent(
                range -> found.add(range.apiKey() + " " + range.minVersion() + " " + range.maxVersion()));
        }
        return String.join(";", found);
    }

    private static String properties(String path) throws Exception {
        Properties read = new Properties();
        try (FileInputStream file = new FileInputStream(path)) {
            read.load(file);
        }
        List<String> found = new ArrayList<>();
        for (String name : new TreeSet<>(read.stringPropertyNames())) {
            found.add(encoded(name) + " " + encoded(read.getProperty(name)));
        }
        return String.join(";", found);
    }

    /** Base 64, with a letter in front so that nothing is not mistaken for an end. */
    private static String encoded(String text) {
        return "=" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
