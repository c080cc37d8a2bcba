"""ACLs in the cluster log and in the image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.units import LogSequence
from app.metadata.changes.acl_changes import ACLS_PER_CHANGE_MAX, create_acls, delete_acls
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, acl_change, feature_change
from app.metadata.log.log_format import encode_key
from app.security.acls import Acl, AclFilter, Operation, Pattern, PatternType, Permission, ResourceType, Rule
from tests.support.acls import acl, acls, table


def image(*made: Acl, level: int = SECURITY_LEVEL) -> ClusterImage:
    draft = ImageDraft(ClusterImage())
    draft.apply([feature_change(LEVEL_FEATURE, level), *[acl_change(one, exists=True) for one in made]])
    return draft.freeze(LogSequence(0))


def plain(found: object) -> set[Acl]:
    return set(AclFilter().find(found))  # type: ignore[arg-type]


def test_the_bytes_of_an_acl() -> None:
    key, value = acl_change(
        Acl(
            Pattern(ResourceType.TOPIC, PatternType.PREFIXED, "or"),
            Rule("User:a", "*", Operation.READ, Permission.ALLOW),
        ),
        exists=True,
    )
    assert key == encode_key(23, 2, 4, "or", "User:a", "*", 3, 3)
    assert key == b"\x98\x17\x02\x04\xa2or\xa6User:a\xa1*\x03\x03"
    assert value == b"\x91\x01"


@given(st.lists(st.tuples(st.booleans(), acls), max_size=6))
def test_the_image_has_what_was_added_and_not_removed(steps: list[tuple[bool, list[Acl]]]) -> None:
    before, expected = image(), set[Acl]()
    for adds, changed in steps:
        draft = ImageDraft(before)
        draft.apply([acl_change(one, exists=adds) for one in changed])
        after = draft.freeze(LogSequence(1))
        assert plain(before.acls) == expected, "an image never changes"
        differs = (expected | set(changed)) if adds else (expected - set(changed))
        assert ImageDelta.between(before, after).acls or differs == expected
        expected, before = differs, after
        assert plain(after.acls) == expected
        assert after.acl_count == len(expected)
        assert {key: {who: set(of) for who, of in one.items()} for key, one in after.acls.items()} == {
            key: {who: set(of) for who, of in one.items()} for key, one in table(expected).items()
        }, "nothing is left of a pattern or principal without rules"


def test_acls_need_their_level_and_the_refusal_names_the_mend() -> None:
    for level in range(SECURITY_LEVEL):
        with pytest.raises(RequestRejected, match=r"firn cluster features --upgrade firn\.version=2") as refused:
            create_acls(ImageDraft(image(level=level)), [acl(2)])
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_what_is_there_already_is_made_again_without_a_record() -> None:
    one, other = acl(Operation.READ), acl(Operation.WRITE)
    planned = create_acls(ImageDraft(image(one)), [one, other, other])
    assert planned.records == [acl_change(other, exists=True)]
    assert planned.answer == [None, None, None]


def test_a_wrong_acl_is_refused_and_the_others_are_made() -> None:
    planned = create_acls(ImageDraft(image()), [acl(Operation.ANY), acl(Operation.READ)])
    assert planned.records == [acl_change(acl(Operation.READ), exists=True)]
    assert planned.answer[0] is not None
    assert planned.answer[0].code is ErrorCode.INVALID_REQUEST
    assert planned.answer[1] is None


def test_what_two_filters_match_is_deleted_once_and_told_twice() -> None:
    one, other = acl(Operation.READ), acl(Operation.READ, "u")
    planned = delete_acls(ImageDraft(image(one, other)), [AclFilter(name="t"), AclFilter(), AclFilter(operation=99)])
    assert planned.records == [acl_change(one, exists=False), acl_change(other, exists=False)]
    assert planned.answer[:2] == [[one], [one, other]]
    assert isinstance(planned.answer[2], RequestRejected)


def test_acls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [acl(2, str(number)) for number in range(ACLS_PER_CHANGE_MAX + 1)]
    with pytest.raises(RequestRejected) as refused:
        create_acls(ImageDraft(image()), many)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    monkeypatch.setattr("app.metadata.changes.acl_changes.ACLS_MAX", 3)
    assert len(create_acls(ImageDraft(image(*many[:2])), many[:3]).records) == 1
    with pytest.raises(RequestRejected) as refused:
        create_acls(ImageDraft(image(*many[:2])), many[2:4])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize(
    "parts", [(2, 3, "t"), ("2", 3, "t", "User:a", "*", 3, 3), (2, 3, "t", "User:a", "*", 3, 3, 4)]
)
def test_a_key_of_another_form_is_corrupt(parts: tuple[object, ...]) -> None:
    with pytest.raises(CorruptionError):
        ImageDraft(image()).apply([(encode_key(23, *parts), b"\x91\x01")])
