//! The rules of a replay, on traces written by hand: when a choice is made, and from which requests.

use blkmq_workbench::{Classes, Settings};

use crate::whole;
use crate::written::Trace;

const SETTINGS: &str = "scheduler none [mq-deadline]\nnr_requests 64\n";

trait Choices {
    fn choices(&self) -> String;
    fn choices_under(&self, settings: &str) -> String;
    fn choices_of(&self, settings: &str, classes: &str) -> String;
}

impl Choices for Trace {
    /// Our choices, without their times: `8R 100R` or `-`.
    fn choices(&self) -> String {
        self.choices_under(SETTINGS)
    }

    fn choices_under(&self, settings: &str) -> String {
        self.choices_of(settings, "")
    }

    fn choices_of(&self, settings: &str, classes: &str) -> String {
        let events = whole::events(&self.bytes);
        let settings = Settings::parse("queue.txt", settings).expect("the settings are well formed");
        let classes = Classes::parse("classes.txt", classes).expect("the classes are well formed");
        let agreement = whole::replay(&events, &settings, &classes).expect("the settings are accepted");
        let words = agreement.choices.iter().map(|choice| match choice.ours {
            Some(rq) => format!("{}{}", rq.sector, rq.direction()),
            None => "-".to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Red if the merge does not count: of four announced requests one merges, so the third insertion ends the plug. The
/// choice after the first issue is made then, before a bio moves the last request to 150. Otherwise 150 would be
/// chosen.
#[test]
fn a_request_that_merges_as_its_plug_is_emptied_counts_as_inserted() {
    let trace = Trace::default().add(1, "U", 0, 4).add(1, "I", 100, 8).add(1, "M", 108, 8);
    let trace = trace.add(1, "I", 200, 8).add(1, "I", 300, 8).add(3, "D", 100, 16);
    let trace = trace.add(2, "Q", 150, 150).add(2, "F", 150, 150).add(3, "D", 200, 8).add(3, "D", 150, 158);
    assert_eq!(trace.choices(), "100R 200R 150R");
}

/// Red if an announcement counts although its task does something else before it has inserted that many requests. The
/// plug ends with the issue. Otherwise the choice after the issue would wait until 150 is there.
#[test]
fn an_announcement_that_the_trace_contradicts_is_none() {
    let trace = Trace::default().add(1, "U", 0, 9).add(1, "I", 100, 8).add(1, "I", 200, 8).add(1, "I", 300, 8);
    let trace = trace.add(3, "D", 100, 8).add(2, "Q", 150, 150).add(2, "F", 150, 150);
    let trace = trace.add(3, "D", 200, 8).add(3, "D", 150, 158).add(1, "Q", 0, 8);
    assert_eq!(trace.choices(), "100R 200R 150R");
}

/// Red if the choice is made before the whole plug is inserted: the lower sector goes first, although it was inserted
/// last.
#[test]
fn a_plug_is_inserted_whole_before_the_choice() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "I", 8, 8);
    assert_eq!(trace.add(1, "D", 8, 8).add(1, "D", 100, 8).choices(), "8R 100R");
}

#[test]
fn a_completion_and_another_cpu_do_not_cut_a_plug_in_two() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "C", 900, 8).add(2, "Q", 300, 8);
    assert_eq!(trace.add(1, "I", 8, 8).add(1, "D", 8, 8).add(1, "D", 100, 8).choices(), "8R 100R");
}

/// Red if the second plug changes the choice, which was made after the first plug.
#[test]
fn a_choice_is_made_after_the_first_plug_and_kept() {
    let trace = Trace::default().add(1, "U", 0, 1).add(1, "I", 100, 8).add(1, "U", 0, 1).add(1, "I", 8, 8);
    assert_eq!(trace.add(1, "D", 100, 8).add(1, "D", 8, 8).choices(), "100R 8R");
}

/// Red if the choice after an issue is made while a plug is being inserted: the insertions hold the scheduler's lock,
/// so the choice comes after them.
#[test]
fn an_issue_amid_insertions_looks_ahead_after_them() {
    let trace = Trace::default().add(1, "U", 0, 1).add(1, "I", 0, 8).add(1, "U", 0, 2).add(1, "I", 100, 8);
    let trace = trace.add(2, "D", 0, 8).add(1, "I", 8, 8).add(2, "D", 8, 8).add(2, "D", 100, 8);
    assert_eq!(trace.choices(), "0R 8R 100R");
}

/// Red if a plug does not end when its task does something else: of two announced requests one merged during the
/// insertion.
#[test]
fn a_plug_ends_when_its_task_does_something_else() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "Q", 8, 8);
    let trace = trace.add(1, "U", 0, 1).add(1, "I", 8, 8);
    assert_eq!(trace.add(1, "D", 100, 8).add(1, "D", 8, 8).choices(), "100R 8R");
}

#[test]
fn unannounced_insertions_in_a_row_are_one_plug_of_their_task() {
    let one = Trace::default().add(1, "I", 100, 8).add(1, "I", 8, 8).add(1, "D", 8, 8).add(1, "D", 100, 8);
    assert_eq!(one.choices(), "8R 100R");
    let two = Trace::default().add(1, "I", 100, 8).add(2, "I", 8, 8).add(1, "D", 100, 8).add(1, "D", 8, 8);
    assert_eq!(two.choices(), "100R 8R");
}

/// Red if the choice after an issue waits for the next insertion, which comes too late for that choice.
#[test]
fn the_next_choice_is_made_right_after_an_issue() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "I", 300, 8).add(1, "D", 100, 8);
    let trace = trace.add(1, "U", 0, 1).add(1, "I", 200, 8);
    assert_eq!(trace.add(1, "D", 300, 8).add(1, "D", 200, 8).choices(), "100R 300R 200R");
}

/// Red if a bio that joins the front of a request does not move the request before 96, or if a bio that joins the end
/// does not move the end to 116. Only there can the next bio join, behind which the request absorbs 124.
#[test]
fn back_and_front_merges_move_the_ends_of_a_waiting_request() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0);
    let trace = trace.add(1, "I", 100, 8).add(1, "I", 96, 2).add(1, "I", 124, 8);
    let trace = trace.add(1, "Q", 108, 8).add(1, "M", 108, 8).add(1, "Q", 92, 8).add(1, "F", 92, 8);
    let trace = trace.add(1, "Q", 116, 8).add(1, "M", 116, 8).add(1, "M", 124, 8);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 92, 40).add(1, "D", 96, 2).add(1, "I", 50, 8).add(1, "D", 50, 8);
    assert_eq!(trace.choices(), "0R 92R 96R 50R");
}

/// Red if a replay obeys the knob, which says what a scheduler looks for: a replay looks for no merges.
#[test]
fn front_merges_are_applied_whatever_the_knob_says() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 8).add(1, "I", 200, 8);
    let trace = trace.add(1, "Q", 92, 8).add(1, "F", 92, 8);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 92, 16).add(1, "D", 200, 8);
    assert_eq!(trace.choices_under(&format!("{SETTINGS}front_merges 0\n")), "0R 92R 200R");
}

/// Red if a merge into a request in a task's plug changes the waiting request that ends at the same place. That request
/// still ends at 116, so another bio can join there, behind which the request absorbs 124.
#[test]
fn a_merge_into_a_plugged_request_is_none_of_the_schedulers() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 16).add(1, "I", 124, 8);
    let trace = trace.add(2, "Q", 108, 8).add(2, "G", 108, 8).add(2, "Q", 116, 4).add(2, "M", 116, 4);
    let trace = trace.add(1, "Q", 116, 8).add(1, "M", 116, 8).add(1, "M", 124, 8).add(1, "D", 0, 8);
    let trace = trace.add(1, "D", 100, 32).add(2, "U", 0, 1).add(2, "I", 108, 12).add(1, "D", 108, 12);
    assert_eq!(trace.choices(), "0R 100R 108R");
}

/// Red if a request that left its plug without being inserted takes a later merge. The merge of 108 goes to the waiting
/// request, which then ends at 116, and absorbs the request there.
#[test]
fn what_was_issued_from_a_plug_is_no_longer_in_it() {
    let trace = Trace::default().add(1, "Gw", 100, 8).add(1, "Dw", 100, 8);
    let trace = trace.add(2, "Iw", 0, 8).add(2, "Q", 0, 0).add(2, "Iw", 100, 8).add(2, "Iw", 116, 8);
    let trace = trace.add(1, "Mw", 108, 8).add(1, "Mw", 116, 8).add(2, "Dw", 0, 8).add(2, "Dw", 100, 24);
    assert_eq!(trace.add(2, "Iw", 50, 8).add(2, "Dw", 50, 8).choices(), "- 0W 100W 50W");
}

/// Red if a request that merged as it left its plug still counts as in the plug. The next bio joins the waiting
/// request, which then ends at 124, and absorbs the request there.
#[test]
fn what_merged_out_of_a_plug_is_no_longer_in_it() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 8).add(1, "I", 124, 8);
    let trace = trace.add(1, "G", 108, 8).add(1, "U", 0, 1).add(1, "M", 108, 8).add(1, "Q", 116, 8);
    let trace = trace.add(1, "M", 116, 8).add(1, "M", 124, 8).add(1, "D", 0, 8).add(1, "D", 100, 32);
    assert_eq!(trace.add(1, "I", 50, 8).add(1, "D", 50, 8).choices(), "0R 100R 50R");
}

/// Red if, of two requests that end where a bio begins, the older one takes the bio. The older one keeps its 8 sectors,
/// and under this size 98 absorbs it.
#[test]
fn a_bio_joins_the_youngest_request_that_fits() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0);
    let trace = trace.add(1, "I", 100, 8).add(1, "I", 92, 16).add(1, "I", 98, 2);
    let trace = trace.add(1, "Q", 108, 8).add(1, "M", 108, 8).add(1, "M", 100, 8).add(1, "D", 0, 8);
    let trace = trace.add(1, "D", 92, 24).add(1, "D", 98, 10).add(1, "I", 50, 8).add(1, "D", 50, 8);
    assert_eq!(trace.choices(), "0R 92R 98R 50R");
}

/// Red if a merge into a request that only our scheduler chose is lost. We keep 8 aside while Linux takes 100, so a bio
/// can still join 8, which then ends at 24, and absorbs the request there.
#[test]
fn a_merge_into_what_only_we_chose_is_kept_for_when_it_is_taken_back() {
    let trace = Trace::default().add(1, "U", 0, 3).add(1, "I", 100, 8).add(1, "I", 24, 8).add(1, "I", 8, 8);
    let trace = trace.add(1, "Q", 16, 8).add(1, "M", 16, 8).add(1, "M", 24, 8).add(1, "D", 100, 8);
    let trace = trace.add(1, "D", 8, 24).add(1, "I", 4, 2).add(1, "D", 4, 2);
    assert_eq!(trace.choices(), "8R 8R 4R");
}

#[test]
fn two_waiting_requests_become_one_only_if_the_trace_says_so() {
    let gap = || {
        let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0);
        trace.add(1, "I", 116, 8).add(1, "I", 100, 8).add(1, "Q", 108, 8).add(1, "M", 108, 8)
    };
    let apart = gap().add(1, "D", 0, 8).add(1, "D", 100, 16).add(1, "D", 116, 8);
    assert_eq!(apart.choices(), "0R 100R 116R");
    // The second merge carries the place of the absorbed request. The request that is issued next is inserted later.
    let joined = gap().add(1, "M", 116, 8).add(1, "D", 0, 8).add(1, "D", 100, 24).add(1, "I", 50, 8).add(1, "D", 50, 8);
    assert_eq!(joined.choices(), "0R 100R 50R");
}

/// Red if the second merge does not find the request that has grown. The bio in the gap joins the front of the request
/// that was inserted last. Then the request before it absorbs that request, under its new place.
#[test]
fn a_request_that_grew_to_the_front_is_absorbed_by_the_one_before_it() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 8).add(1, "I", 116, 8);
    let trace = trace.add(1, "Q", 108, 8).add(1, "F", 108, 8).add(1, "M", 108, 16);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 100, 24).add(1, "I", 50, 8).add(1, "D", 50, 8);
    assert_eq!(trace.choices(), "0R 100R 50R");
}

/// Red if a request that has taken in a plugged one cannot be absorbed itself: 116 joins the end of 108, which then
/// joins the end of 100.
#[test]
fn a_request_that_took_a_plugged_one_in_is_absorbed_by_the_one_before_it() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 8).add(1, "I", 108, 8);
    let trace = trace.add(1, "G", 116, 8).add(1, "U", 0, 1).add(1, "M", 116, 8).add(1, "M", 108, 16);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 100, 24).add(1, "I", 50, 8).add(1, "D", 50, 8);
    assert_eq!(trace.choices(), "0R 100R 50R");
}

/// Red if a plugged request joins the beginning of a waiting one: Linux joins it only to the end of another, even if
/// the request that was inserted last begins where the plugged one ends.
#[test]
fn a_plugged_request_joins_the_end_of_another_rather_than_the_beginning() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 92, 8).add(1, "I", 108, 8);
    let trace = trace.add(1, "G", 100, 8).add(1, "U", 0, 1).add(1, "M", 100, 8);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 92, 16).add(1, "D", 108, 8);
    assert_eq!(trace.choices(), "0R 92R 108R");
}

/// Red if a plugged request that merges is taken for the waiting request at the same place, which must go on waiting.
#[test]
fn a_plugged_request_is_not_taken_for_a_waiting_one_at_its_place() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 108, 8).add(1, "I", 92, 8);
    let trace = trace.add(1, "G", 100, 8).add(1, "G", 108, 8).add(1, "U", 0, 2).add(1, "M", 100, 8);
    let trace = trace.add(1, "M", 108, 8).add(1, "D", 0, 8).add(1, "D", 92, 24).add(1, "D", 108, 8);
    assert_eq!(trace.choices(), "0R 92R 108R");
}

/// Red if a request that only our scheduler chose is not absorbed. We keep 16 aside while Linux takes 100, so 16 can
/// still be absorbed, and then no longer waits.
#[test]
fn what_only_we_chose_can_be_absorbed() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "I", 16, 8).add(1, "U", 0, 1);
    let trace = trace.add(1, "I", 0, 8).add(1, "Q", 8, 8).add(1, "M", 8, 8).add(1, "M", 16, 8);
    let trace = trace.add(1, "D", 100, 8).add(1, "D", 0, 24).add(1, "I", 10, 4).add(1, "D", 10, 4);
    assert_eq!(trace.choices(), "16R 0R 10R");
}

/// Red if a read is taken for a write at the same sector. A scheduler begins in a batch of writes, so the write goes
/// first, although the read is older.
#[test]
fn reads_and_writes_at_the_same_sector_are_told_apart() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 100, 8).add(1, "Iw", 100, 8);
    assert_eq!(trace.add(1, "Dw", 100, 8).add(1, "D", 100, 8).choices(), "100W 100R");
}

/// Red if an issue of a request that never was in the scheduler counts as a choice, or replaces the choice that was
/// made.
#[test]
fn an_issue_that_was_never_inserted_leaves_the_choice_standing() {
    let trace = Trace::default().add(1, "I", 100, 8).add(1, "Dw", 0, 0).add(1, "D", 100, 8);
    assert_eq!(trace.choices(), "- 100R");
}

/// Red if our choice is not taken back when Linux takes another request than the lowest sector. Our choice then goes
/// last, because it lies before the request that Linux took.
#[test]
fn after_a_disagreement_the_replay_follows_linux() {
    let trace = Trace::default().add(1, "U", 0, 3).add(1, "I", 8, 8).add(1, "I", 200, 8).add(1, "I", 300, 8);
    let trace = trace.add(1, "D", 200, 8).add(1, "D", 300, 8).add(1, "D", 8, 8);
    assert_eq!(trace.choices(), "8R 300R 8R");
}

/// Red if our scheduler follows Linux with what came in after the choice. When 100 was chosen no write waited, so no
/// batch of reads had passed one yet, and the next batch may.
#[test]
fn linux_chose_from_what_it_saw() {
    let trace = Trace::default().add(1, "U", 0, 2).add(1, "I", 0, 8).add(1, "I", 100, 8).add(2, "U", 0, 1);
    let trace = trace.add(2, "Iw", 500, 8).add(3, "D", 100, 8).add(3, "D", 0, 8).add(3, "Dw", 500, 8);
    assert_eq!(trace.choices_under(&format!("{SETTINGS}fifo_batch 1\nwrites_starved 1\n")), "0R 0R 500W");
}

/// Red if our scheduler follows Linux with what came in after the request that Linux took. When 50 came in and was
/// chosen no write waited, so the next batch may be of reads.
#[test]
fn linux_may_have_chosen_what_came_in_late() {
    let trace = Trace::default().add(1, "U", 0, 1).add(1, "I", 100, 8).add(1, "U", 0, 1).add(1, "I", 50, 8);
    let trace = trace.add(2, "U", 0, 1).add(2, "Iw", 500, 8).add(3, "D", 50, 8).add(3, "D", 100, 8);
    let trace = trace.add(3, "Dw", 500, 8);
    assert_eq!(trace.choices_under(&format!("{SETTINGS}fifo_batch 1\nwrites_starved 1\n")), "100R 100R 500W");
}

/// Red if, of two requests at one sector, the device is taken to take the older one: it takes what we chose. A bio in
/// front moves 16 to 8, behind the request that stands there. What is left at 8 then ends at 24, where a bio can join
/// it, behind which it absorbs 28.
#[test]
fn the_device_takes_what_we_chose_if_it_fits() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 16, 8).add(1, "I", 8, 8);
    let trace = trace.add(1, "I", 28, 8).add(1, "Q", 8, 8).add(1, "F", 8, 8).add(1, "D", 0, 8).add(1, "D", 8, 8);
    let trace = trace.add(1, "Q", 24, 4).add(1, "M", 24, 4).add(1, "M", 28, 8).add(1, "D", 8, 28);
    assert_eq!(trace.add(1, "I", 50, 8).add(1, "D", 50, 8).choices(), "0R 8R 8R 50R");
}

/// Red if a request without sectors absorbs itself: it ends where it begins.
#[test]
fn a_request_does_not_absorb_itself() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 0);
    let trace = trace.add(1, "M", 100, 0).add(1, "M", 100, 0).add(1, "D", 0, 8).add(1, "D", 100, 0);
    assert_eq!(trace.choices(), "0R 100R");
}

/// Red if a look that found nothing changes nothing, because another class had all its requests in the driver. It began
/// a batch, which goes on in sector order although the oldest request has expired.
#[test]
fn a_choice_that_finds_nothing_may_begin_a_batch() {
    let trace = Trace::default().add(1, "I", 0, 8).add(3, "D", 0, 8).add(1, "U", 0, 2).add(1, "I", 3000, 8);
    let trace = trace.add(1, "I", 2000, 8).add(1, "C", 0, 8).add(3, "D", 2000, 8).add(3, "D", 3000, 8);
    let settings = format!("{SETTINGS}fifo_batch 1\nread_expire 0\n");
    assert_eq!(trace.choices_of(&settings, "0 1000 rt\n"), "0R 2000R 3000R");
}

/// Red if a request absorbs one of another class, which stands in another list: it would be lost there.
#[test]
fn a_request_absorbs_none_of_another_class() {
    let trace = Trace::default().add(1, "I", 0, 8).add(1, "Q", 0, 0).add(1, "I", 100, 4).add(1, "I", 108, 8);
    let trace = trace.add(1, "Q", 104, 4).add(1, "M", 104, 4).add(1, "M", 108, 8);
    let trace = trace.add(1, "D", 0, 8).add(1, "D", 100, 8).add(1, "C", 0, 8).add(1, "C", 100, 8).add(1, "D", 108, 8);
    assert_eq!(trace.choices_of(SETTINGS, "0 108 rt\n"), "0R 100R 108R");
}

/// Red if our scheduler finds the place for a bio: it would add it to 100. The trace says that the bio went in front of
/// 116.
#[test]
fn a_front_merge_is_no_back_merge_though_one_would_fit() {
    let trace = Trace::default().add(1, "U", 0, 4).add(1, "I", 0, 8).add(1, "I", 100, 8).add(1, "I", 116, 8);
    let trace = trace.add(1, "Iw", 100, 8);
    let trace = trace.add(1, "Q", 108, 8).add(1, "F", 108, 8);
    let trace = trace.add(1, "Dw", 100, 8).add(1, "D", 0, 8).add(1, "D", 100, 8).add(1, "D", 108, 16);
    assert_eq!(trace.choices(), "100W 0R 100R 108R");
}

/// Red if what waits is not bounded: each insertion of a trace without issues would stay in memory.
#[test]
fn a_trace_without_issues_is_refused_before_its_requests_fill_memory() {
    let insertions = |number: u64| (0..number).fold(Trace::default(), |trace, at| trace.add(1, "I", 16 * at, 8));
    let settings = Settings::parse("queue.txt", SETTINGS).expect("the settings are well formed");
    let replay = |trace: Trace| whole::replay(&whole::events(&trace.bytes), &settings, &Classes::default());
    assert!(replay(insertions(262_144)).is_ok());
    let text = replay(insertions(262_145)).expect_err("there is one more").to_string();
    assert!(text.starts_with("the trace at 262145000 ns: more than 262144 insertions"), "{text}");
    assert!(text.contains("issue (D)"), "{text}");
}
