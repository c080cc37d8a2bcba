import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Writes records of Kafka's coordinators: a line "class prefix version json" in, the bytes in hexadecimal out. */
public final class Records {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ", 4);
            short version = Short.parseShort(fields[2]);
            Message message = (Message) Class.forName(fields[0] + "JsonConverter")
                .getMethod("read", JsonNode.class, short.class)
                .invoke(null, mapper.readTree(fields[3]), version);
            byte[] body = bytes(MessageUtil.toByteBufferAccessor(message, version).buffer());
            byte[] prefix = ByteBuffer.allocate(2).putShort(Short.parseShort(fields[1])).array();
            System.out.println(HexFormat.of().formatHex(prefix) + HexFormat.of().formatHex(body));
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
