import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after the other in one JVM, because starting one takes longer than what they do.
 *
 * Each line of standard input is a run: base64 fields, separated by spaces: class, bytes of standard input, arguments.
 * Each is answered by one line: exit code, base64 of standard output, base64 of standard error.
 */
public final class Tools {
    private static final class Ended extends RuntimeException {
        Ended() {
            super(null, null, false, false);
        }
    }

    private static volatile Integer exit;

    public static void main(String[] ignored) throws Exception {
        Exit.Procedure end = (code, message) -> {
            if (exit == null) {
                exit = code; // some tools catch their own exit and report it as a failure
            }
            throw new Ended();
        };
        List<Runnable> hooks = new ArrayList<>();
        PrintStream answers = System.out;
        BufferedReader runs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = runs.readLine(); line != null; line = runs.readLine()) {
            Exit.setExitProcedure(end);
            Exit.setHaltProcedure(end);
            Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
            exit = null;
            String[] fields = Arrays.stream(line.split(" ", -1))
                .map(field -> new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8))
                .toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream error = new ByteArrayOutputStream();
            System.setIn(new ByteArrayInputStream(fields[1].getBytes(StandardCharsets.UTF_8)));
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(error, true, StandardCharsets.UTF_8));
            int code = run(fields[0], Arrays.copyOfRange(fields, 2, fields.length));
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.out.flush();
            System.err.flush();
            answers.println(code + " " + encoded(out) + " " + encoded(error));
            answers.flush();
        }
    }

    private static int run(String tool, String[] arguments) throws Exception {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return exit == null ? 0 : exit;
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof Ended) {
                return exit;
            }
            failure.getCause().printStackTrace();
            return 1;
        }
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
