import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.share.ShareCoordinatorConfig;
import org.apache.kafka.coordinator.share.ShareCoordinatorRecordSerde;
import org.apache.kafka.coordinator.share.ShareCoordinatorShard;
import org.apache.kafka.coordinator.share.ShareGroupOffset;
import org.apache.kafka.coordinator.share.metrics.ShareCoordinatorMetrics;
import org.apache.kafka.server.share.SharePartitionKey;
import org.apache.kafka.server.share.persister.PersisterStateBatch;
import org.apache.kafka.timeline.SnapshotRegistry;

/**
 * Kafka's own classes of its coordinators, asked one thing by a line and answering by a line.
 *
 * <p>"range RACKS;RACKS... ... | ID INSTANCE|- RACK|- TOPIC,TOPIC|- TOPIC:PARTITION,...|- ...": what the range assignor of the
 * consumer protocol gives to whom; "uniform" asks the other one. A topic is the racks of each of its partitions ("a,b;-;c"), and
 * the last word of a member is what it owns.
 * "share GROUP TOPIC PARTITION KEY=VALUE|- ...": what a share coordinator knows that has loaded these records, in hexadecimal.
 */
public final class CoordinatorClasses {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("share") ? share(words) : assigned(words));
        }
    }

    private static Uuid topic(int number) {
        return new Uuid(1, number);
    }

    private static List<String> listed(String word) {
        return word.equals("-") ? List.of() : List.of(word.split(","));
    }

    private static String assigned(String[] words) {
        List<List<Set<String>>> racks = new ArrayList<>();
        int at = 1;
        for (; !words[at].equals("|"); at++) {
            List<Set<String>> each = new ArrayList<>();
            for (String partition : words[at].split(";")) each.add(Set.copyOf(listed(partition)));
            racks.add(each);
        }
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        Map<Uuid, Map<Integer, String>> owners = new LinkedHashMap<>();
        for (at++; at < words.length; at += 5) {
            String member = words[at];
            Set<Uuid> topics = new HashSet<>();
            for (String number : listed(words[at + 3])) topics.add(topic(Integer.parseInt(number)));
            subscriptions.add(topics);
            Map<Uuid, Set<Integer>> owned = new LinkedHashMap<>();
            for (String pair : listed(words[at + 4])) {
                Uuid topic = topic(Integer.parseInt(pair.split(":")[0]));
                int partition = Integer.parseInt(pair.split(":")[1]);
                owned.computeIfAbsent(topic, each -> new HashSet<>()).add(partition);
                owners.computeIfAbsent(topic, each -> new LinkedHashMap<>()).put(partition, member);
            }
            members.put(member, new MemberSubscriptionAndAssignmentImpl(
                listed(words[at + 2]).stream().findFirst(), listed(words[at + 1]).stream().findFirst(), topics, new Assignment(owned)));
        }
        SubscriptionType type = subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        SubscribedTopicDescriber describer = new SubscribedTopicDescriber() {
            public int numPartitions(Uuid topicId) {
                return racks.get((int) topicId.getLeastSignificantBits()).size();
            }

            public Set<String> racksForPartition(Uuid topicId, int partition) {
                return racks.get((int) topicId.getLeastSignificantBits()).get(partition);
            }
        };
        ConsumerGroupPartitionAssignor assignor = words[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
        Map<String, MemberAssignment> given = assignor.assign(new GroupSpecImpl(members, type, owners), describer).members();
        StringBuilder answer = new StringBuilder();
        for (String member : new TreeSet<>(given.keySet())) {
            answer.append(member).append("=");
            for (Map.Entry<Uuid, Set<Integer>> each : new TreeMap<>(given.get(member).partitions()).entrySet())
                for (int partition : new TreeSet<>(each.getValue()))
                    answer.append(each.getKey().getLeastSignificantBits()).append("-").append(partition).append(",");
            answer.append(" ");
        }
        return answer.toString().trim();
    }

    private static String share(String[] words) throws Exception {
        ShareCoordinatorConfig config = new ShareCoordinatorConfig(new AbstractConfig(ShareCoordinatorConfig.CONFIG_DEF, Map.of()));
        ShareCoordinatorShard shard = new ShareCoordinatorShard.Builder(config)
            .withLogContext(new LogContext())
            .withSnapshotRegistry(new SnapshotRegistry(new LogContext()))
            .withTime(Time.SYSTEM)
            .withCoordinatorMetrics(new ShareCoordinatorMetrics())
            .withTopicPartition(new TopicPartition("__share_group_state", 0))
            .build();
        ShareCoordinatorRecordSerde serde = new ShareCoordinatorRecordSerde();
        HexFormat hex = HexFormat.of();
        for (int at = 4; at < words.length; at++) {
            String[] record = words[at].split("=");
            ByteBuffer value = record[1].equals("-") ? null : ByteBuffer.wrap(hex.parseHex(record[1]));
            shard.replay(at, -1, (short) -1, serde.deserialize(ByteBuffer.wrap(hex.parseHex(record[0])), value));
        }
        var look = ShareCoordinatorShard.class.getDeclaredMethod("getShareStateMapValue", SharePartitionKey.class);
        look.setAccessible(true);
        SharePartitionKey key = SharePartitionKey.getInstance(words[1], Uuid.fromString(words[2]), Integer.parseInt(words[3]));
        ShareGroupOffset known = (ShareGroupOffset) look.invoke(shard, key);
        if (known == null) return "nothing";
        StringBuilder answer = new StringBuilder().append(known.startOffset()).append(" ").append(known.snapshotEpoch());
        for (PersisterStateBatch each : new TreeSet<>(known.stateBatches()))
            for (long offset = Math.max(each.firstOffset(), known.startOffset()); offset <= each.lastOffset(); offset++)
                answer.append(" ").append(offset).append(":").append(each.deliveryState()).append(":").append(each.deliveryCount());
        return answer.toString();
    }
}
