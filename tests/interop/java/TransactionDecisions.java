import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashSet;
import java.util.Optional;
import java.util.Set;
import kafka.coordinator.transaction.CoordinatorEpochAndTxnMetadata;
import kafka.coordinator.transaction.TransactionConfig;
import kafka.coordinator.transaction.TransactionCoordinator;
import kafka.coordinator.transaction.TransactionStateManager;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.ProducerIdAndEpoch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.runtime.BoxedUnit;
import scala.util.Either;
import scala.util.Right;

/**
 * Kafka's transaction coordinator, asked for one decision by a line and answering by a line.
 *
 * <p>"STATE PRODUCER_ID PREVIOUS_ID NEXT_ID EPOCH LAST_EPOCH VERSION REQUEST ID EPOCH MORE": the transaction as stored, with the
 * partition a-0 if it is open or prepared, and a request by a producer. REQUEST and MORE are "init -" (ID -1: without an identity),
 * "add VERSION", "verify -", "commit VERSION", "abort VERSION"; requests name the partition a-0. The answer is the code, or
 * "STATE PRODUCER_ID EPOCH NEXT_ID" of the record that the coordinator writes. A prepared transaction waits for its markers.
 */
public final class TransactionDecisions {
    private static final long FRESH_ID = 9;
    private static TransactionMetadata current;
    private static String answer;

    private static final class Stored extends TransactionStateManager {
        Stored() {
            super(1, null, null, null, new TransactionConfig(604800000, 900000, 50, (short) 3, 1 << 20, 1 << 20, 1, 10000, 10000, false, 30000),
                Time.SYSTEM, new Metrics());
        }

        @Override
        public TransactionVersion transactionVersionLevel() {
            return TransactionVersion.TV_2;
        }

        @Override
        public boolean validateTransactionTimeoutMs(boolean twoPhase, int timeoutMs) {
            return true;
        }

        @Override
        public Either<Errors, Option<CoordinatorEpochAndTxnMetadata>> getTransactionState(String id) {
            return new Right<>(new Some<>(new CoordinatorEpochAndTxnMetadata(0, current)));
        }

        @Override
        public void appendTransactionToLog(String id, int epoch, TxnTransitMetadata to, Function1<Errors, BoxedUnit> done,
                                           Function1<Errors, Object> retry, RequestLocal local) {
            answer = String.join(" ", to.txnState().name(), "" + to.producerId(), "" + to.producerEpoch(), "" + to.nextProducerId());
        }
    }

    public static void main(String[] arguments) throws Exception {
        TransactionCoordinator coordinator = new TransactionCoordinator(
            new TransactionConfig(604800000, 900000, 50, (short) 3, 1 << 20, 1 << 20, 1, 10000, 10000, false, 30000),
            null, () -> () -> FRESH_ID, new Stored(), null, Time.SYSTEM, new LogContext());
        var active = TransactionCoordinator.class.getDeclaredField("isActive");
        active.setAccessible(true);
        ((java.util.concurrent.atomic.AtomicBoolean) active.get(coordinator)).set(true);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answer = "nothing";
            try {
                decide(coordinator, line.split(" "));
            } catch (RuntimeException error) {
                answer = "raised " + error.toString().replace('\n', ' ');
            }
            System.out.println(answer);
        }
    }

    private static TransactionVersion version(String word) {
        return TransactionVersion.fromFeatureLevel(Short.parseShort(word));
    }

    private static void decide(TransactionCoordinator coordinator, String[] words) {
        TransactionState state = TransactionState.valueOf(words[0]);
        TopicPartition a = new TopicPartition("a", 0);
        boolean prepared = state == TransactionState.PREPARE_COMMIT || state == TransactionState.PREPARE_ABORT;
        boolean busy = prepared || state == TransactionState.ONGOING;
        current = new TransactionMetadata("t", Long.parseLong(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]),
            Short.parseShort(words[4]), Short.parseShort(words[5]), 1000, state, new HashSet<>(busy ? Set.of(a) : Set.of()),
            state == TransactionState.EMPTY ? -1 : 1, 1, version(words[6]));
        if (prepared) current.prepareComplete(1);  // as when its markers are being sent
        String request = words[7];
        long id = Long.parseLong(words[8]);
        short epoch = Short.parseShort(words[9]);
        RequestLocal local = RequestLocal.noCaching();
        switch (request) {
            case "init" -> coordinator.handleInitProducerId("t", 1000, false, false,
                id < 0 ? Option.empty() : new Some<>(new ProducerIdAndEpoch(id, epoch)),
                result -> {
                    answer = result.error().name();
                    return BoxedUnit.UNIT;
                }, local);
            case "add" -> coordinator.handleAddPartitionsToTransaction("t", id, epoch, Set.of(a), error -> {
                answer = error.name();
                return BoxedUnit.UNIT;
            }, version(words[10]), local);
            case "verify" -> coordinator.handleVerifyPartitionsInTransaction("t", id, epoch, Set.of(a), result -> {
                answer = Errors.forCode(result.topicResults().iterator().next().resultsByPartition().iterator().next()
                    .partitionErrorCode()).name();
                return BoxedUnit.UNIT;
            });
            default -> coordinator.handleEndTransaction("t", id, epoch,
                request.equals("commit") ? TransactionResult.COMMIT : TransactionResult.ABORT, version(words[10]),
                (error, newId, newEpoch) -> {
                    answer = error.name();
                    return BoxedUnit.UNIT;
                }, local);
        }
    }
}
