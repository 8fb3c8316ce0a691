//! Queue pair numbers: each has one owner at a time.

use efa_core::address::Qpn;
use efa_device_model::device::QpnRange;
use efa_device_model::qpn_policy::QpnPolicy;
use loom::sync::Arc;
use loom::thread;

use crate::qpn::{ParticipantId, QpnAllocation, QpnChoice, QpnTable};
use crate::sync::atomic::{AtomicU32, AtomicU64};

struct Table {
    range: QpnRange,
    clock: AtomicU32,
    slots: Vec<AtomicU64>,
}

impl Table {
    fn words(&self) -> QpnTable<'_> {
        QpnTable {
            range: self.range,
            clock: &self.clock,
            slots: &self.slots,
        }
    }

    fn allocation(&self, qpn: Qpn) -> Option<QpnAllocation> {
        self.words().allocation(self.range.slot(qpn)?)
    }
}

fn table() -> Arc<Table> {
    let range = QpnRange::for_queue_pairs(2);
    Arc::new(Table {
        range,
        clock: AtomicU32::new(0),
        slots: (0..range.count()).map(|_| AtomicU64::new(0)).collect(),
    })
}

fn take(table: &Table, owner: u32, dead: Option<u32>) -> Option<Qpn> {
    let mut choice = QpnChoice::new(QpnPolicy::Lowest, 0);
    let mut is_alive = |id: ParticipantId| Some(id.0) != dead;
    let owner = ParticipantId(owner);
    table.words().take(owner, &mut choice, None, &mut is_alive)
}

/// Two participants take a number each, and the numbers differ.
pub(super) fn a_number_goes_to_one_taker() {
    let table = table();
    let other = Arc::clone(&table);
    let thread = thread::spawn(move || take(&other, 1, None));
    let mine = take(&table, 2, None).expect("there are two");
    let theirs = thread
        .join()
        .expect("it does not panic")
        .expect("there are two");
    assert_ne!(mine, theirs);
    for (qpn, owner) in table.words().owned() {
        assert_eq!(qpn, if owner.0 == 2 { mine } else { theirs });
    }
}

/// One participant frees the number of a dead one while another takes it: no participant loses a
/// number that it owns.
pub(super) fn a_dead_owners_number_goes_to_one_taker() {
    const DEAD: u32 = 9;
    let table = table();
    let first = take(&table, DEAD, None).expect("there are two");
    let before = table.allocation(first);
    let other = Arc::clone(&table);
    let thread = thread::spawn(move || other.words().release_all(|id| id.0 == DEAD));
    let mine = take(&table, 2, Some(DEAD)).expect("there are two");
    thread.join().expect("it does not panic");
    let now = table.allocation(mine).expect("it is taken");
    assert_eq!(now.owner(), ParticipantId(2));
    assert_ne!(Some(now), before);
}
