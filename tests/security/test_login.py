"""Every order of handshakes and messages: nobody is let in who has not shown the right password last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, ProtocolError
from app.security.login import Login, State
from app.security.sasl import LoggedIn, Mechanism, PlainServer, plain_message

BEFORE = frozenset({17, 18, 36})
USERS = {"alice": b"a", "bob": b"b"}


class TwoSteps:
    """Takes any first message, and a password as the second."""

    def __init__(self) -> None:
        self._begun = False

    def evaluate(self, token: bytes) -> bytes | LoggedIn:
        if not self._begun:
            self._begun = True
            return b"go on"
        return PlainServer(USERS).evaluate(token)


def new(name: str) -> Mechanism:
    return PlainServer(USERS) if name == "PLAIN" else TwoSteps()


def login() -> Login:
    return Login(["PLAIN", "TWO"], new)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("handshake"), st.sampled_from(["PLAIN", "TWO", "OTHER"]), st.integers(0, 1)),
        st.tuples(
            st.just("message"),
            st.sampled_from(
                [plain_message("alice", "a"), plain_message("bob", "b"), plain_message("alice", "b"), b"", b"x"]
            ),
            st.just(0),
        ),
        st.tuples(st.just("request"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("time"), st.floats(0, 3), st.just(0)),
    ),
    max_size=12,
)


@given(STEPS, st.booleans())
def test_a_connection_is_open_only_after_the_right_password(steps: list[tuple[str, object, int]], ends: bool) -> None:
    one, now_s, user, chosen, begun = login(), 0.0, "", "", False
    one.session_ends = ends
    again_s = -10.0
    for kind, value, version in steps:
        state = one.state
        if kind == "time":
            now_s += float(value)  # type: ignore[arg-type]
        elif kind == "request":
            if state is State.OPEN or value in BEFORE:
                one.check_served(int(value), BEFORE)  # type: ignore[call-overload]
            else:
                with pytest.raises(ProtocolError):
                    one.check_served(int(value), BEFORE)  # type: ignore[call-overload]
        elif kind == "handshake":
            code, told = one.handshake(version, str(value), now_s)
            illegal = state is State.CHOSEN or (state is State.OPEN and (not ends or now_s - again_s < 1))
            known = value in ("PLAIN", "TWO") and (state is State.SILENT or value == chosen)
            expected = (
                ErrorCode.ILLEGAL_SASL_STATE
                if illegal
                else ErrorCode.NONE
                if known
                else ErrorCode.UNSUPPORTED_SASL_MECHANISM
            )
            assert code == expected
            assert list(told) == ([] if illegal else ["PLAIN", "TWO"])
            if code:
                assert one.goes_on(code) is (illegal and state is State.OPEN)
                if not one.goes_on(code):
                    return  # the connection ends
                assert one.state is State.OPEN
                continue
            if state is State.OPEN:
                again_s = now_s
            chosen, begun = str(value), False
            assert one.state is State.CHOSEN
        else:
            reply = one.authenticate(bytes(value))  # type: ignore[call-overload]
            if state is not State.CHOSEN:
                assert (reply.code, reply.logged_in, one.state) == (ErrorCode.ILLEGAL_SASL_STATE, None, state)
                assert one.goes_on(reply.code) is (state is State.OPEN)
                if state is State.OPEN:
                    continue
                return
            if chosen == "TWO" and not begun:
                begun = True
                assert (reply.code, reply.token, one.state) == (ErrorCode.NONE, b"go on", State.CHOSEN)
                continue
            named = {plain_message("alice", "a"): "alice", plain_message("bob", "b"): "bob"}.get(bytes(value))  # type: ignore[call-overload]
            if named is None or (user and named != user):
                assert reply.code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert reply.logged_in is None
                return
            assert reply.logged_in is not None
            assert reply.logged_in.user == named
            user = named
            assert one.state is State.OPEN


def test_messages_come_without_a_header_after_the_oldest_handshake_only() -> None:
    for version in (0, 1):
        one = login()
        one.handshake(version, "PLAIN", 0)
        assert one.opaque is (version == 0)
        one.authenticate(plain_message("alice", "a"))
        assert not one.opaque
