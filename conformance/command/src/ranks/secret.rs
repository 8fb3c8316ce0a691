//! A secret by which both ends of a connection know that the other one belongs to the job.
//!
//! Neither end sends the secret. Each sends a random number, and the other one proves the secret by what ChaCha20 makes
//! of the secret as its key and of the number as its nonce. The two ends prove it with different parts of that stream, so that
//! no proof can be sent back. What follows is neither encrypted nor authenticated.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, Read, Write};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Begins what each end sends; the last byte is the version.
const GREETING: [u8; 8] = *b"EFA-rnk\x01";
const PROOF: usize = 32;

/// Known to the processes of one job only.
#[derive(Clone)]
pub(super) struct Secret([u8; 32]);

/// Which end of a connection.
#[derive(Clone, Copy)]
enum End {
    /// The one that connects.
    Client,
    /// The one that listens.
    Server,
}

impl Secret {
    pub(super) fn random() -> Self {
        Secret(rand::random())
    }

    /// In hexadecimal digits.
    pub(super) fn text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            // Texts can always be written.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Reads what [`Secret::text`] has written.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 2 * bytes.len() || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Secret(bytes))
    }

    fn proof(&self, end: End, number: u64) -> [u8; PROOF] {
        let mut stream = ChaCha20Rng::from_seed(self.0);
        stream.set_stream(number);
        let mut parts = [[0; PROOF]; 2];
        for part in &mut parts {
            stream.fill_bytes(part);
        }
        match end {
            End::Client => parts[0],
            End::Server => parts[1],
        }
    }

    /// Proves the secret to the listening end after that end has proved it.
    pub(super) fn prove_as_client(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        let own: u64 = rand::random();
        stream.write_all(&[GREETING, own.to_be_bytes()].concat())?;
        let other = greeted(stream)?;
        self.check(stream, End::Server, own)?;
        stream.write_all(&self.proof(End::Client, other))
    }

    /// Proves the secret to the end that has connected, and lets that end prove it.
    pub(super) fn prove_as_server(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        let other = greeted(stream)?;
        let own: u64 = rand::random();
        let greeting = [GREETING, own.to_be_bytes()].concat();
        stream.write_all(&[&greeting[..], &self.proof(End::Server, other)].concat())?;
        self.check(stream, End::Client, own)
    }

    /// Reads a proof.
    fn check(&self, stream: &mut impl Read, end: End, number: u64) -> io::Result<()> {
        let mut proof = [0; PROOF];
        stream.read_exact(&mut proof)?;
        match are_equal(&proof, &self.proof(end, number)) {
            true => Ok(()),
            false => Err(wrong("it does not know the job's secret")),
        }
    }
}

/// Reads the other end's greeting; returns its number.
fn greeted(stream: &mut impl Read) -> io::Result<u64> {
    let (mut greeting, mut number) = ([0; GREETING.len()], [0; 8]);
    stream.read_exact(&mut greeting)?;
    if greeting != GREETING {
        return Err(wrong("it does not speak as a rank of this release does"));
    }
    stream.read_exact(&mut number)?;
    Ok(u64::from_be_bytes(number))
}

fn wrong(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Takes the same time wherever the two differ.
fn are_equal(a: &[u8; PROOF], b: &[u8; PROOF]) -> bool {
    let difference = a
        .iter()
        .zip(b)
        .fold(0, |all, (a, b)| black_box(all | (a ^ b)));
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn meet(client: Secret, server: Secret) -> [bool; 2] {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || client.prove_as_client(&mut one).is_ok());
        let server = server.prove_as_server(&mut other).is_ok();
        drop(other);
        [client.join().unwrap(), server]
    }

    #[test]
    fn both_ends_must_know_the_secret() {
        let secret = Secret::random();
        let same = Secret::parse(&secret.text()).unwrap();
        assert_eq!(meet(secret.clone(), same), [true, true]);
        assert_eq!(meet(secret, Secret::random()), [false, false]);
    }

    #[test]
    fn a_proof_holds_for_one_number_and_one_end() {
        let secret = Secret([7; 32]);
        let proof = secret.proof(End::Client, 1);
        assert!(are_equal(&proof, &Secret([7; 32]).proof(End::Client, 1)));
        assert!(!are_equal(&proof, &secret.proof(End::Client, 2)));
        assert!(!are_equal(&proof, &secret.proof(End::Server, 1)));
        for index in 0..PROOF {
            let mut other = proof;
            other[index] ^= 0x80;
            assert!(!are_equal(&proof, &other));
        }
    }

    #[test]
    fn texts_that_are_no_secret_are_refused() {
        for text in [
            "",
            "00",
            &"0".repeat(63),
            &"0".repeat(65),
            &"g".repeat(64),
            &"é".repeat(32),
        ] {
            assert!(Secret::parse(text).is_none(), "{text}");
        }
    }
}
