//! A hostile peer at random: the fuzz target `endpoint` without the fuzzer's feedback.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use efa_testing::hostile_peer;

#[test]
fn random_hostile_peers_break_nothing() {
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let length = rng.random_range(50..2000);
        let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        if let Err(cause) = std::panic::catch_unwind(|| hostile_peer::run(&bytes)) {
            let file = std::env::temp_dir().join(format!("hostile-{seed}"));
            std::fs::write(&file, &bytes).expect("writable");
            eprintln!("seed {seed}: the bytes are in {}", file.display());
            std::panic::resume_unwind(cause);
        }
    }
}
