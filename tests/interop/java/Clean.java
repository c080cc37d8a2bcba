import java.io.File;
import java.util.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.server.util.*;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Compacts a partition's directory with Kafka's own cleaner: directory, dirty start, dirty end, now, topic settings as name=value. */
public class Clean {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        for (int i = 4; i < args.length; i++) {
            String[] parts = args[i].split("=", 2);
            settings.put(parts[0], parts[1]);
        }
        Time time = Time.SYSTEM;
        long end = Long.parseLong(args[2]);
        Scheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            new File(args[0]), new LogConfig(settings), 0L, 1L << 60, scheduler, new BrokerTopicStats(), time, 900000,
            new ProducerStateManagerConfig(1 << 30, false), 600000, new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(1 << 20), 1 << 20, 1 << 24, 0.9, new Throttler(1e12, 300, "x", "y", time), time, partition -> { });
        var done = cleaner.doClean(new LogToClean(log, Long.parseLong(args[1]), end, false), Long.parseLong(args[3]));
        System.out.println(done.getKey());
        log.close();
        scheduler.shutdown();
    }
}
