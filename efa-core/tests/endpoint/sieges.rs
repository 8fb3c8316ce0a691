//! Sieges at random: the fuzz target `endpoint` without the fuzzer's feedback.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use efa_testing::siege;

#[test]
fn random_sieges_break_nothing() {
    for seed in 0..300 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let length = rng.random_range(50..2000);
        let bytes: Vec<u8> = (0..length).map(|_| rng.random()).collect();
        if let Err(cause) = std::panic::catch_unwind(|| siege::run(&bytes)) {
            let file = std::env::temp_dir().join(format!("siege-{seed}"));
            std::fs::write(&file, &bytes).expect("writable");
            eprintln!("seed {seed}: the bytes are in {}", file.display());
            std::panic::resume_unwind(cause);
        }
    }
}
