import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateDelegationTokenOptions;
import org.apache.kafka.clients.admin.DescribeDelegationTokenOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.security.auth.KafkaPrincipal;

/** Sends what the Java client sends: Requests BOOTSTRAP TOPIC. What is refused does not matter; it was sent. */
public final class Requests {
    private static final String GROUP_DONE = "classic-group";

    private static String bootstrap;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        produce(Map.of());
        produce(Map.of("transactional.id", "java-transaction"));
        assigned();
        for (String protocol : List.of("classic", "consumer")) {
            subscribed(protocol);
        }
        try (Admin admin = Admin.create(settings(Map.of()))) {
            administer(admin);
        }
        shared();
    }

    private static Properties settings(Map<String, String> more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", StringSerializer.class.getName());
        properties.put("value.serializer", StringSerializer.class.getName());
        properties.put("key.deserializer", StringDeserializer.class.getName());
        properties.put("value.deserializer", StringDeserializer.class.getName());
        properties.putAll(more);
        return properties;
    }

    private static void produce(Map<String, String> more) throws Exception {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings(more))) {
            boolean transactional = !more.isEmpty();
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            producer.send(new ProducerRecord<>(topic, 0, "key", "value")).get();
            if (transactional) {
                producer.commitTransaction();
            }
        }
    }

    private static void assigned() {
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(Map.of("enable.auto.commit", "false")))) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, new OffsetAndMetadata(0, Optional.of(0), ""));
            consumer.poll(Duration.ofSeconds(2));
            consumer.endOffsets(List.of(partition));
        }
    }

    private static void subscribed(String protocol) {
        Map<String, String> more = Map.of(
            "group.protocol", protocol, "group.id", protocol + "-group", "auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(more))) {
            consumer.subscribe(List.of(topic));
            for (int polls = 0; polls < 20 && consumer.poll(Duration.ofMillis(500)).isEmpty(); polls++) {
            }
            consumer.poll(Duration.ofSeconds(4)); // a heartbeat is sent meanwhile
            consumer.commitSync();
        }
    }

    private static void shared() throws Exception {
        Map<String, String> more = Map.of("group.id", "share-group", "share.acknowledgement.mode", "implicit");
        try (Admin admin = Admin.create(settings(Map.of()))) {
            ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, "share-group");
            settle(List.of(admin.incrementalAlterConfigs(Map.of(group, List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all()));
            try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings(more))) {
                consumer.subscribe(List.of(topic));
                for (int polls = 0; polls < 20 && consumer.poll(Duration.ofMillis(500)).isEmpty(); polls++) {
                }
                consumer.commitSync();
                settle(List.of(admin.describeShareGroups(List.of("share-group")).all()));
            }
            settle(List.of(
                admin.listShareGroupOffsets(Map.of("share-group", new ListShareGroupOffsetsSpec())).all(),
                admin.alterShareGroupOffsets("share-group", Map.of(new TopicPartition(topic, 0), 1L)).all(),
                admin.deleteShareGroupOffsets("share-group", Set.of(topic)).all()));
        }
    }

    private static void administer(Admin admin) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        settle(List.of(admin.createTopics(List.of(new NewTopic("new", 1, (short) 1).configs(Map.of("retention.ms", "-1")))).all()));
        settle(List.of(
            admin.createPartitions(Map.of("new", NewPartitions.increaseTo(2))).all(),
            admin.describeTopics(List.of(topic)).allTopicNames(),
            admin.listTopics().names(),
            admin.describeCluster().nodes(),
            admin.describeConfigs(List.of(resource)).all(),
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "86400000"), AlterConfigOp.OpType.SET)))).all(),
            admin.listConfigResources().all(),
            admin.describeLogDirs(List.of(1)).allDescriptions(),
            admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, 0, 1), "/elsewhere")).all(),
            admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all(),
            admin.listGroups().all(),
            admin.describeClassicGroups(List.of(GROUP_DONE)).all(),
            admin.describeConsumerGroups(List.of("consumer-group")).all(),
            admin.listConsumerGroupOffsets(GROUP_DONE).partitionsToOffsetAndMetadata(),
            admin.deleteConsumerGroupOffsets(GROUP_DONE, Set.of(partition)).all(),
            admin.deleteConsumerGroups(List.of(GROUP_DONE)).all(),
            admin.describeProducers(List.of(partition)).all(),
            admin.describeTransactions(List.of("java-transaction")).all(),
            admin.listTransactions().all(),
            admin.abortTransaction(new AbortTransactionSpec(partition, 4711L, (short) 0, 0)).all(),
            admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).all(),
            admin.alterPartitionReassignments(Map.of(
                partition, Optional.of(new NewPartitionReassignment(List.of(1))))).all(),
            admin.listPartitionReassignments(Set.of(partition)).reassignments(),
            admin.describeMetadataQuorum().quorumInfo(),
            admin.updateFeatures(
                Map.of("firn.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
                new UpdateFeaturesOptions().validateOnly(true)).all(),
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(
                new ClientQuotaEntity(Map.of("user", "java")),
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all(),
            admin.describeClientQuotas(ClientQuotaFilter.all()).entities(),
            admin.unregisterBroker(4711).all(),
            admin.createDelegationToken(new CreateDelegationTokenOptions()
                .owner(new KafkaPrincipal("User", "alice"))
                .renewers(List.of(new KafkaPrincipal("User", "bob"))).maxLifetimeMs(60_000)).delegationToken(),
            admin.renewDelegationToken(new byte[64]).expiryTimestamp(),
            admin.expireDelegationToken(new byte[64]).expiryTimestamp(),
            admin.describeDelegationToken(new DescribeDelegationTokenOptions()
                .owners(List.of(new KafkaPrincipal("User", "alice")))).delegationTokens(),
            admin.createAcls(List.of(new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, topic, PatternType.PREFIXED),
                new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)))).all(),
            admin.describeAcls(AclBindingFilter.ANY).values(),
            admin.deleteAcls(List.of(AclBindingFilter.ANY)).all(),
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(1))).all(),
            admin.deleteTopics(List.of("new")).all()));
    }

    private static void settle(List<KafkaFuture<?>> answers) throws Exception {
        for (KafkaFuture<?> answer : new ArrayList<>(answers)) {
            try {
                answer.get(10, TimeUnit.SECONDS);
            } catch (java.util.concurrent.ExecutionException refused) {
                System.err.println(refused.getCause());
            }
        }
    }
}
