"""SCRAM by the examples of RFC 5802 and RFC 7677, against wrong passwords, strangers and mutated messages."""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.security.sasl import LoggedIn, PlainServer, Refused, plain_message
from app.security.scram import (
    DEFAULT_SHAPE,
    ITERATIONS_MIN,
    SHAPE_BYTES_MAX,
    SHAPES_MAX,
    Alphabet,
    SaltShape,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    counted,
    credential_of,
    imitated,
    nobody,
    salted_password,
    shape_of,
)

SALT = b"0123456789abcdef"
KINDS = list(ScramMechanism)


def credential(kind: ScramMechanism, password: str = "pencil", salt: bytes = SALT) -> ScramCredential:
    return credential_of(kind, salted_password(kind, password, salt, ITERATIONS_MIN), salt, ITERATIONS_MIN)


CREDENTIALS = {kind: {"user": credential(kind)} for kind in KINDS}


def server(kind: ScramMechanism, nonce: str = "server") -> ScramServer:
    return ScramServer(kind, CREDENTIALS[kind].get, nonce=nonce, secret=b"s" * 32)


def talk(kind: ScramMechanism, user: str, password: str) -> LoggedIn:
    client, other = ScramClient(kind, user, password, nonce="client"), server(kind)
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    last = other.evaluate(client.answer(first))
    assert isinstance(last, LoggedIn)
    client.check(last.token)
    return last


def test_the_example_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential(ScramMechanism.SCRAM_SHA_256, "pencil", salt)
    other = ScramServer(
        ScramMechanism.SCRAM_SHA_256, {"user": known}.get, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", secret=b""
    )
    first = other.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    last = other.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == LoggedIn("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("kind", KINDS)
def test_who_knows_the_password_gets_in_and_knows_the_server(kind: ScramMechanism) -> None:
    assert talk(kind, "user", "pencil").user == "user"


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_and_a_user_who_does_not_exist_look_the_same(kind: ScramMechanism) -> None:
    seen = []
    for user in ("user", "nobody"):
        client, other = ScramClient(kind, user, "wrong", nonce="client"), server(kind)
        first = other.evaluate(client.first)
        assert isinstance(first, bytes)
        fields = dict(part.split(b"=", 1) for part in first.split(b","))
        with pytest.raises(Refused) as refused:
            other.evaluate(client.answer(first))
        seen.append((sorted(fields), fields[b"i"], str(refused.value)))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("user", ["user", "nobody"])
def test_a_client_that_doubles_its_nonce_is_told_so_whoever_it_names(user: str) -> None:
    client, other = ScramClient(SHA_512, user, "pencil", nonce="client"), server(SHA_512)
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    with pytest.raises(Refused, match=r"repeats its nonce .* librdkafka before 2\.6\.1") as refused:
        other.evaluate(client.answer(first).replace(b"r=client", b"r=clientclient"))
    assert refused.value.user == user


def test_the_salt_of_a_user_who_does_not_exist_stays_the_same_and_is_anothers_for_another() -> None:
    salts = [server(kind).evaluate(b"n,,n=%s,r=c" % user) for kind in KINDS for user in (b"a", b"a", b"b")]
    assert salts[0] == salts[1] != salts[2] != salts[3] == salts[4]


SECRET = b"s" * 32
SHA_512 = ScramMechanism.SCRAM_SHA_512
JAVA = SaltShape(Alphabet.JAVA, 0, 4096)
OF_LIBRDKAFKA = SaltShape(Alphabet.ALL, 64, 4096)
NAMES = [f"user-{number}" for number in range(400)]


def with_salt(salt: bytes, iterations: int = 4096) -> ScramCredential:
    return ScramCredential(salt, b"", b"", iterations)


@pytest.mark.parametrize(
    ("salt", "shape"),
    [
        (b"16xkfyqljplufincxvqlosw5xd", (Alphabet.JAVA, 0)),
        (b"xjfh2id6t3ivjpo94bjb1d29b", (Alphabet.JAVA, 0)),
        (b"zjfh2id6t3ivjpo94bjb1d", (Alphabet.SMALL, 22)),
        (b"z6xkfyqljplufincxvqlosw5xd", (Alphabet.SMALL, 26)),  # a greater number than Kafka's tools make
        (b"0jfh2id6t3ivjpo94bjb1d29b", (Alphabet.SMALL, 25)),
        (b"0123456789abcdef01234567", (Alphabet.HEXADECIMAL, 24)),
        (b"Uc+x/9==", (Alphabet.BASE64, 8)),
        (b"with a blank", (Alphabet.PRINTED, 12)),
        (bytes(range(24)), (Alphabet.ALL, 24)),
        (bytes(range(64)), (Alphabet.ALL, 64)),
        (b"\0" * 5000, (Alphabet.ALL, SHAPE_BYTES_MAX)),
    ],
)
def test_the_shape_of_a_salt_is_its_length_its_alphabet_and_the_iterations(
    salt: bytes, shape: tuple[Alphabet, int]
) -> None:
    assert shape_of(with_salt(salt, 8192)) == (*shape, 8192)


@pytest.mark.parametrize(
    "shapes",
    [
        [JAVA],
        [OF_LIBRDKAFKA],
        [JAVA, OF_LIBRDKAFKA, DEFAULT_SHAPE, JAVA._replace(iterations=8192)],
        [SaltShape(alphabet, length, 5000) for alphabet in Alphabet if alphabet for length in (9, 100)],
    ],
)
def test_users_who_do_not_exist_have_the_shapes_of_those_who_do(shapes: list[SaltShape]) -> None:
    found = Counter(shape_of(nobody(SHA_512, SECRET, name, shapes)) for name in NAMES)
    assert found.keys() == set(shapes)
    assert min(found.values()) > len(NAMES) / len(shapes) / 2, "all of them about as often"


def test_salts_of_java_are_as_long_as_javas() -> None:
    lengths = Counter(len(nobody(SHA_512, SECRET, name, (JAVA,)).salt) for name in NAMES)
    assert 0.5 < lengths[25] / len(NAMES) < 0.7
    assert 0.3 < lengths[26] / len(NAMES) < 0.5


def test_where_all_users_have_the_default_shape_the_salt_is_the_hmac_of_the_name() -> None:
    for shapes in (imitated(()), (DEFAULT_SHAPE,)):
        found = nobody(SHA_512, SECRET, "x", shapes)
        assert found.salt == hmac.digest(SECRET, b"SCRAM-SHA-512\0x", "sha512")[:24]
        assert found.iterations == ITERATIONS_MIN


def test_a_salt_stays_when_users_come_and_go_and_few_change_with_a_new_shape() -> None:
    shapes = (JAVA, OF_LIBRDKAFKA, DEFAULT_SHAPE)
    before = {name: nobody(SHA_512, SECRET, name, shapes).salt for name in NAMES}
    assert before == {name: nobody(SHA_512, SECRET, name, shapes[::-1]).salt for name in NAMES}
    new = JAVA._replace(iterations=8192)
    after = {name: nobody(SHA_512, SECRET, name, (*shapes, new)) for name in NAMES}
    changed = [name for name in NAMES if shape_of(after[name]) == new]
    assert len(NAMES) / 8 < len(changed) < len(NAMES) / 2
    assert all(after[name].salt == before[name] for name in NAMES if name not in changed)


def test_a_salt_longer_than_a_digest_is_not_told_by_its_beginning() -> None:
    salt = nobody(SHA_512, SECRET, "x", (SaltShape(Alphabet.ALL, 200, 4096),)).salt
    other = nobody(SHA_512, b"t" * 32, "x", (SaltShape(Alphabet.ALL, 200, 4096),)).salt
    assert len(salt) == len({*zip(salt, other, range(200), strict=True)}) == 200
    assert len({salt[at : at + 8] for at in range(192)}) == 192, "nothing is repeated"


def test_of_too_many_shapes_the_same_ones_are_imitated_whoever_has_them() -> None:
    shapes = [SaltShape(Alphabet.ALL, length, 4096) for length in range(1, 500)]
    found = imitated(shapes)
    assert len(found) == SHAPES_MAX
    assert (
        found
        == imitated(reversed(shapes))
        == imitated(shapes + [one._replace(iterations=9999) for one in shapes[400:]])
    )
    assert set(imitated(shapes[:SHAPES_MAX])) == set(shapes[:SHAPES_MAX])


def test_users_are_counted_by_shape() -> None:
    one, other = with_salt(bytes(64)), with_salt(bytes(24))
    shapes = counted(counted({}, None, one), None, one)
    assert shapes == {OF_LIBRDKAFKA: 2}
    shapes = counted(shapes, one, other)
    assert shapes == {OF_LIBRDKAFKA: 1, DEFAULT_SHAPE: 1}
    assert counted(counted(shapes, one, None), other, other) == {DEFAULT_SHAPE: 1}


def test_a_name_has_another_salt_as_a_token_than_as_a_user() -> None:
    """As the name of a user who exists has: otherwise whoever asks both ways learns that nobody exists."""
    salts = []
    for extension in (b"", b",tokenauth=true"):
        server = ScramServer(SHA_512, lambda _: None, nonce="server", secret=SECRET)
        answer = server.evaluate(b"n,,n=x,r=c" + extension)
        assert isinstance(answer, bytes)
        salts.append(answer.split(b",")[1])
    assert salts[0] != salts[1]


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"p=tls-unique,,n=user,r=c",
        b"n,a=other,n=user,r=c",
        b"n,,m=x,n=user,r=c",
        b"n,,n=us=XXer,r=c",
        b"n,,n=,r=c",
        b"n,,n=\xff,r=c",
        b"x" * 20_000,
    ],
)
def test_a_first_message_that_is_wrong_is_refused(message: bytes) -> None:
    with pytest.raises(Refused):
        server(ScramMechanism.SCRAM_SHA_256).evaluate(message)


@given(st.data())
def test_no_change_of_the_last_message_gets_in(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    client, other = ScramClient(kind, "user", "pencil", nonce="client"), server(kind)
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    message = bytearray(client.answer(first))
    position = data.draw(st.integers(0, len(message) - 1))
    change = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if change == "flip":
        # The last character of a base64 text has bits that mean nothing, so that one is left as it is.
        position -= position == len(bytes(message).rstrip(b"=")) - 1
        message[position] ^= data.draw(st.sampled_from([0x40, 0x80]))
    elif change == "cut":
        del message[position:]
    else:
        message[position:position] = data.draw(st.binary(min_size=1, max_size=4))
    with pytest.raises(Refused):
        other.evaluate(bytes(message))


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_any_name_and_password_survive_the_messages(user: str, password: str) -> None:
    kind = ScramMechanism.SCRAM_SHA_256
    if "\0" in user:
        return
    known = credential(kind, password)
    client = ScramClient(kind, user, password, nonce="client")
    other = ScramServer(kind, {user: known}.get, nonce="server", secret=b"")
    first = other.evaluate(client.first)
    assert isinstance(first, bytes)
    last = other.evaluate(client.answer(first))
    assert isinstance(last, LoggedIn)
    assert last.user == user


def test_a_client_refuses_a_server_that_asks_for_too_little_or_does_not_know_the_password() -> None:
    client = ScramClient(ScramMechanism.SCRAM_SHA_256, "user", "pencil", nonce="client")
    for message in (b"r=clientX,s=QQ==,i=1", b"r=other,s=QQ==,i=4096", b"r=client,s=QQ==,i=4096", b"e=no"):
        with pytest.raises(Refused):
            client.answer(message)
    client.answer(b"r=clientX,s=QQ==,i=4096")
    with pytest.raises(Refused):
        client.check(b"v=AAAA")


def test_plain_lets_in_who_knows_the_password_and_says_no_more() -> None:
    plain = PlainServer({"alice": b"secret"})
    assert plain.evaluate(plain_message("alice", "secret")) == LoggedIn("alice")
    assert plain.evaluate(b"alice\0alice\0secret") == LoggedIn("alice")
    seen = set()
    for message in (
        plain_message("alice", "wrong"),
        plain_message("nobody", "secret"),
        plain_message("nobody", ""),
        b"bob\0alice\0secret",
        b"\0alice\0secret\0",
        b"",
        b"\0\xff\0secret",
    ):
        with pytest.raises(Refused) as refused:
            plain.evaluate(message)
        seen.add(str(refused.value))
    assert seen == {"Authentication failed: Invalid username or password"}
