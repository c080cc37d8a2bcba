package org.apache.spark.kafka010;

import scala.collection.immutable.Seq;

/** Settings as they are logged: no secret is among them. */
public final class KafkaRedactionUtil$ {
    public static final KafkaRedactionUtil$ MODULE$ = new KafkaRedactionUtil$();

    public Seq<?> redactParams(Seq<?> settings) {
        return settings;
    }
}
