from session.cli.output import brief


def test_moments_and_digests_are_cut_to_fit_a_terminal() -> None:
    assert brief("2026-11-30T11:04:02.123456Z") == "2026-11-30 11:04"
    assert brief("2026-11-30T11:04:02Z") == "2026-11-30 11:04"
    assert brief("sha256:" + "ab" * 32) == "sha256:abababababab…"
    assert brief("facts@1") == "facts@1"
