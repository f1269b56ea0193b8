"""The ledger of a round."""

import math

import pytest

from topology.nodes.store.rounds import AHEAD_S, Claim, RoundLedger, RoundPlan, RoundService, Share, Unit, Verdict
from topology.testing import ManualClock

PLAN = RoundPlan(unit=Unit.STEPS, total=10, share=4)


@pytest.fixture
def ledger():
    ledger = RoundLedger(PLAN, lease_s=5.0)
    ledger.begin(7)
    return ledger


def test_work_is_cut_into_shares_that_make_up_the_whole():
    assert PLAN.amounts() == (4, 4, 2)
    assert RoundPlan(unit=Unit.EPISODES, total=4, share=2).amounts() == (2, 2)


@pytest.mark.parametrize("share", [0, -1, 11])
def test_a_share_is_at_least_one_and_at_most_the_round(share):
    with pytest.raises(ValueError, match=f"10 steps cannot be cut into shares of {share}"):
        RoundPlan(unit=Unit.STEPS, total=10, share=share)


def test_every_worker_gets_another_share_until_there_is_none(ledger):
    claims = [ledger.claim(f"worker/{i}", 7, now=float(i)) for i in range(4)]
    assert [claim.share for claim in claims] == [
        Share(7, 0, "steps", 4),
        Share(7, 1, "steps", 4),
        Share(7, 2, "steps", 2),
        None,
    ]
    assert claims[3].wait_s == 2.0  # then the first lease is over
    assert [share.id for share in (claims[0].share, claims[1].share)] == ["7/0", "7/1"]


def test_a_worker_with_another_policy_gets_no_work(ledger):
    assert ledger.claim("old", 6, 0.0) == Claim(7)
    assert ledger.claim("new", 8, 0.0) == Claim(7, None, AHEAD_S)
    assert ledger.stats.leased == 0


def test_a_share_whose_time_is_over_is_granted_again_after_those_nobody_had(ledger):
    ledger.claim("slow", 7, 0.0)
    assert ledger.claim("quick", 7, 6.0).share.part == 1
    assert ledger.claim("quick", 7, 6.0).share.part == 2
    assert ledger.claim("quick", 7, 6.0).share.part == 0
    assert ledger.claim("quick", 7, 6.0).share is None
    assert ledger.stats.taken_over == 1


def test_a_share_counts_once_whoever_brings_it(ledger):
    share = ledger.claim("slow", 7, 0.0).share
    assert ledger.receive(share.id) is Verdict.COUNTED
    assert ledger.receive(share.id) is Verdict.DUPLICATE
    assert ledger.receive("7/2") is Verdict.COUNTED  # that nobody claimed of this ledger: its trainer was started again
    assert (ledger.stats.counted, ledger.stats.duplicates) == (2, 1)
    assert not ledger.complete
    ledger.receive("7/1")
    assert ledger.complete
    assert ledger.claim("any", 7, 0.0) == Claim(7, None, math.inf)


@pytest.mark.parametrize("share", ["6/0", "8/0", "7/3", "7/-1", "7/", "7", "", None, "7/0/0", "7/ 0", 7])
def test_what_is_no_share_of_this_round_does_not_count(ledger, share):
    assert ledger.receive(share) is Verdict.OTHER_POLICY
    assert (ledger.stats.counted, ledger.stats.other_policy) == (0, 1)


def test_a_worker_that_begins_anew_gives_back_what_it_had(ledger):
    for _ in range(3):
        ledger.claim("mortal", 7, 0.0)
    assert ledger.claim("other", 7, 1.0).share is None
    ledger.join("mortal")
    assert ledger.claim("other", 7, 1.0).share.part == 0
    assert ledger.stats.taken_over == 1


def test_a_round_begins_with_nothing_claimed_or_counted(ledger):
    ledger.claim("a", 7, 0.0)
    ledger.receive("7/1")
    ledger.begin(8)
    assert (ledger.stats.policy, ledger.stats.leased, ledger.stats.counted) == (8, 0, 0)
    assert ledger.claim("a", 8, 0.0).share.id == "8/0"
    for policy in (8, 3):
        with pytest.raises(ValueError, match="numbers grow"):
            ledger.begin(policy)


def test_a_lease_lasts(ledger):
    with pytest.raises(ValueError, match="lease_s=0"):
        RoundLedger(PLAN, lease_s=0)


def test_the_service_measures_leases_by_its_clock():
    clock = ManualClock()
    service = RoundService(RoundLedger(RoundPlan(unit=Unit.STEPS, total=1, share=1), lease_s=5.0), clock=clock)
    service.begin(0)
    assert service.claim("a", 0).share is not None
    assert service.claim("b", 0).wait_s == 5.0
    clock.advance(5.0)
    assert service.claim("b", 0).share is not None
    assert service.receive("0/0") is Verdict.COUNTED
    assert service.complete
    assert service.stats.taken_over == 1
