//! All models, within the time limit of a test. `LOOM_MAX_PREEMPTIONS` bounds how often a thread is
//! preempted; `scripts/verify` sets a higher value.

mod counter;
mod doorbells;
mod numbers;
mod rings;
mod sessions;

fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_within(None, model);
}

/// Explores a model with at most `most` preemptions, independent of the environment.
fn explore_within(most: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let bound = builder.preemption_bound.unwrap_or(2);
    builder.preemption_bound = Some(most.unwrap_or(bound).min(bound));
    builder.max_branches = 100_000;
    builder.check(model);
}

macro_rules! models {
    ($($name:ident: $model:expr,)*) => {
        $(#[test]
        fn $name() {
            explore($model);
        })*
    };
}

models! {
    mutex_turns: counter::threads_take_turns,
    mutex_attempt: counter::one_thread_may_find_it_held,
    session_calls: sessions::calls_take_turns,
    session_exclusion: sessions::a_session_keeps_others_out,
    session_beside: sessions::only_the_owner_gets_in_beside_a_session,
    session_earlier: sessions::an_earlier_session_makes_no_owner,
    claim_withdrawal: rings::memory_that_was_taken_back_is_quiet,
    claim_reopened: rings::memory_that_was_reopened_is_the_targets_again,
    ring_from_its_start: || rings::records_arrive_whole_and_are_answered(7, 0, 0),
    ring_round_its_end: || rings::records_arrive_whole_and_are_answered(7, 2, 0),
    ring_memory_used_again: || rings::records_arrive_whole_and_are_answered(5, 0, 2),
    ring_answers_used_again: || rings::records_arrive_whole_and_are_answered(12, 3, 0),
    doorbell_one_sender: || doorbells::no_record_is_left_while_the_owner_sleeps(&[2]),
    doorbell_stop: doorbells::a_sleeping_owner_is_stopped,
    number_taken: numbers::a_number_goes_to_one_taker,
    number_of_the_dead: numbers::a_dead_owners_number_goes_to_one_taker,
}

#[test]
fn doorbell_two_senders() {
    // Three preemptions take hours.
    explore_within(Some(2), || {
        doorbells::no_record_is_left_while_the_owner_sleeps(&[0, 1]);
    });
}
