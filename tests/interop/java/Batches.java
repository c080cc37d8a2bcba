import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.Scanner;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/** Decodes one record batch per line (base64) as the Java consumer does, and prints how many bytes of values it has, or the error. */
public class Batches {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            System.out.println(valueBytes(Base64.getDecoder().decode(lines.nextLine())));
        }
    }

    private static String valueBytes(byte[] bytes) {
        long total = 0;
        try {
            RecordBatch batch = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches().iterator().next();
            batch.ensureValid();
            try (CloseableIterator<Record> records = batch.streamingIterator(BufferSupplier.create())) {
                while (records.hasNext()) {
                    total += records.next().valueSize();
                }
            }
            return "read " + total;
        } catch (Throwable error) {
            return ("error " + error + " " + error.getCause()).replace("\n", " ");
        }
    }
}
