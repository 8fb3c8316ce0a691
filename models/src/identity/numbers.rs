//! Queue pair numbers: each has one owner at a time.

use std::path::Path;

use efa_core::address::{Gid, Qpn};
use loom::sync::Arc;
use loom::thread;

use super::device_name::DeviceName;
use super::qpn::{HostTable, ParticipantId, QpnChoice, TableOwner};
use efa_device_model::qpn_policy::QpnPolicy;

fn table() -> Arc<HostTable> {
    let nowhere = Path::new("/dev/null");
    let name = DeviceName::new("model", 0, 1);
    let table = HostTable::create(nowhere, &name, Gid::default(), TableOwner::Own(2));
    Arc::new(table.expect("nothing is written"))
}

fn take(table: &HostTable, owner: u32, dead: Option<u32>) -> Option<Qpn> {
    let mut choice = QpnChoice::new(QpnPolicy::Lowest, 0);
    let mut is_alive = |id: ParticipantId| Some(id.0) != dead;
    table
        .take(ParticipantId(owner), &mut choice, None, &mut is_alive)
        .ok()
}

/// Two participants take a number each, and the numbers differ.
pub fn a_number_goes_to_one_taker() {
    let table = table();
    let other = Arc::clone(&table);
    let thread = thread::spawn(move || take(&other, 1, None));
    let mine = take(&table, 2, None).expect("there are two");
    let theirs = thread
        .join()
        .expect("it does not panic")
        .expect("there are two");
    assert_ne!(mine, theirs);
    for (qpn, owner) in table.owned() {
        assert_eq!(qpn, if owner.0 == 2 { mine } else { theirs });
    }
}

/// One participant frees the number of a dead one while another takes it: no participant loses a
/// number that it owns.
pub fn a_dead_owners_number_goes_to_one_taker() {
    const DEAD: u32 = 9;
    let table = table();
    let first = take(&table, DEAD, None).expect("there are two");
    let place = table.place(first).expect("it is in the table");
    let before = table.allocation_at(place);
    let other = Arc::clone(&table);
    let thread = thread::spawn(move || other.release_all(|id| id.0 == DEAD));
    let mine = take(&table, 2, Some(DEAD)).expect("there are two");
    thread.join().expect("it does not panic");
    let place = table.place(mine).expect("it is in the table");
    let now = table.allocation_at(place).expect("it is taken");
    assert_eq!(now.owner(), ParticipantId(2));
    assert_ne!(Some(now), before);
}
