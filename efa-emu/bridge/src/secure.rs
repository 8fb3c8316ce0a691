//! The bytes of a connection: always authenticated, and encrypted unless both ends prefer no
//! encryption.
//!
//! A connection begins with TLS, in which both ends prove that they have the key, and with the
//! greeting. Both block a thread. Afterwards the connection is non-blocking ([`Wire`]). Without
//! encryption both ends continue in plain text on the same connection: until the greeting ends, a
//! reader reads one TLS record at a time, so that it never reads beyond the greeting.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{
    AlertDescription, CertificateError, ClientConnection, Connection, Error, ServerConnection,
};

use crate::frames::{self, Frames};
use crate::key::{Key, NAME};

/// Time limit for authentication and greeting.
const PATIENCE: Duration = Duration::from_secs(5);

/// The length of a TLS record's header, and the maximum number of bytes after it.
const RECORD_HEADER: usize = 5;
const LONGEST_RECORD: usize = (16 << 10) + 256;

/// The first byte of TLS records: change_cipher_spec to application_data.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// An end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Dialer,
    Acceptor,
}

/// A connection with an authenticated other end.
pub(crate) struct SecureConnection {
    stream: DeadlineStream,
    tls: Connection,
}

/// A stream with a total time limit, however slowly data arrives.
struct DeadlineStream {
    stream: TcpStream,
    until: Instant,
}

impl DeadlineStream {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(DeadlineStream::too_late()),
            false => Ok(Some(left)),
        }
    }

    fn in_time(result: io::Result<usize>) -> io::Result<usize> {
        result.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => DeadlineStream::too_late(),
            _ => error,
        })
    }

    fn too_late() -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, "it takes too long to greet")
    }
}

impl Read for DeadlineStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        DeadlineStream::in_time(self.stream.read(into))
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        DeadlineStream::in_time(self.stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl SecureConnection {
    /// Authenticates both ends.
    pub(crate) fn begin(stream: TcpStream, end: Role, key: &Key) -> io::Result<SecureConnection> {
        SecureConnection::begin_within(PATIENCE, stream, end, key)
    }

    fn begin_within(
        patience: Duration,
        stream: TcpStream,
        end: Role,
        key: &Key,
    ) -> io::Result<SecureConnection> {
        stream.set_nodelay(true)?;
        let stream = DeadlineStream {
            stream,
            until: Instant::now() + patience,
        };
        let tls = match end {
            Role::Dialer => {
                let name = ServerName::try_from(NAME).expect("the name is a DNS name");
                ClientConnection::new(Arc::clone(&key.client), name).map(Connection::from)
            }
            Role::Acceptor => ServerConnection::new(Arc::clone(&key.server)).map(Connection::from),
        };
        let mut tls = tls.map_err(explain)?;
        tls.set_buffer_limit(None);
        let mut secured = SecureConnection { stream, tls };
        while secured.tls.is_handshaking() {
            secured.flush()?;
            if secured.tls.is_handshaking() {
                secured.read_record()?;
            }
        }
        secured.flush()?;
        Ok(secured)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    fn read_record(&mut self) -> io::Result<()> {
        let mut record = vec![0; RECORD_HEADER];
        self.stream.read_exact(&mut record)?;
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        // Otherwise it would wait for bytes that never arrive.
        if !RECORD_TYPES.contains(&record[0]) || record[1] != 3 || length > LONGEST_RECORD {
            return Err(explain(Error::General("no TLS record".to_owned())));
        }
        record.resize(RECORD_HEADER + length, 0);
        self.stream.read_exact(&mut record[RECORD_HEADER..])?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest)?;
        }
        if let Err(error) = self.tls.process_new_packets() {
            // Sends the alert with the reason.
            let _ = self.flush();
            return Err(explain(error));
        }
        Ok(())
    }

    /// Sends a whole frame.
    pub(crate) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(frame)?;
        self.flush()
    }

    /// Waits for the next frame, of at most `longest` bytes.
    pub(crate) fn receive(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; frames::HEADER];
        self.read_exact(&mut frame)?;
        let length = frames::length(&frame, longest)?;
        frame.resize(length, 0);
        self.read_exact(&mut frame[frames::HEADER..])?;
        Ok(frame)
    }

    fn read_exact(&mut self, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            match self.tls.reader().read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.read_record()?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The connection after the greeting.
    pub(crate) fn into_wire(self, plain: bool) -> io::Result<Wire> {
        let SecureConnection { stream, tls } = self;
        let DeadlineStream { stream, .. } = stream;
        stream.set_nonblocking(true)?;
        Ok(match plain {
            true => Wire {
                stream,
                cipher: None,
            },
            false => Wire {
                stream,
                cipher: Some(Box::new(Cipher {
                    tls,
                    received: vec![0; Frames::CHUNK],
                    to_send: Vec::new(),
                    sent: 0,
                })),
            },
        })
    }
}

/// A connection after the greeting. All operations are non-blocking.
pub(crate) struct Wire {
    stream: TcpStream,
    /// `None` if both ends continue in plain text.
    cipher: Option<Box<Cipher>>,
}

struct Cipher {
    tls: Connection,
    /// Buffer for received bytes.
    received: Vec<u8>,
    /// Encrypted bytes to send, of which `sent` are sent.
    to_send: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Sends until the socket accepts no more. Returns the number of accepted bytes.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(cipher) = &mut self.cipher else {
            return unless_blocked((&self.stream).write(bytes));
        };
        if !cipher.flush(&self.stream)? {
            return Ok(0);
        }
        cipher.tls.writer().write_all(bytes)?;
        cipher.flush(&self.stream)?;
        Ok(bytes.len())
    }

    /// Whether accepted bytes are unsent.
    pub(crate) fn has_unsent(&self) -> bool {
        let cipher = self.cipher.as_ref();
        cipher.is_some_and(|cipher| cipher.sent < cipher.to_send.len() || cipher.tls.wants_write())
    }

    /// Adds received bytes to `frames`. Returns whether there were any.
    ///
    /// # Errors
    /// The connection is closed.
    pub(crate) fn receive(&mut self, frames: &mut Frames) -> io::Result<bool> {
        let Some(cipher) = &mut self.cipher else {
            let count = received(self.stream.read(frames.room()))?;
            frames.filled(count);
            return Ok(count > 0);
        };
        // Data that arrived with the end of the handshake.
        let mut any = drain(&mut cipher.tls, frames)?;
        let count = received(self.stream.read(&mut cipher.received))?;
        let mut rest = &cipher.received[..count];
        while !rest.is_empty() {
            cipher.tls.read_tls(&mut rest)?;
            cipher.tls.process_new_packets().map_err(explain)?;
            any |= drain(&mut cipher.tls, frames)?;
        }
        Ok(any)
    }

    /// Stops sending, and waits until the other end has received everything and closed the
    /// connection, or until `until`. Closing a socket with unread data would discard the sent data.
    pub(crate) fn finish(mut self, until: Instant) {
        let end = |stream: &mut TcpStream| {
            stream.shutdown(Shutdown::Write)?;
            stream.set_nonblocking(false)
        };
        if end(&mut self.stream).is_err() {
            return;
        }
        let stream = self.stream;
        let _ = io::copy(&mut DeadlineStream { stream, until }, &mut io::sink());
    }

    /// Closes the connection for both ends.
    pub(crate) fn cut(&self) {
        // It may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Cipher {
    /// Sends encrypted bytes, and encrypts queued ones. Returns whether nothing is left.
    fn flush(&mut self, mut stream: &TcpStream) -> io::Result<bool> {
        loop {
            if self.sent == self.to_send.len() {
                self.to_send.clear();
                self.sent = 0;
                while self.tls.wants_write() {
                    self.tls.write_tls(&mut self.to_send)?;
                }
                if self.to_send.is_empty() {
                    return Ok(true);
                }
            }
            match unless_blocked(stream.write(&self.to_send[self.sent..]))? {
                0 => return Ok(false),
                count => self.sent += count,
            }
        }
    }
}

/// The number of bytes of a call: 0 if it would have blocked.
fn unless_blocked(result: io::Result<usize>) -> io::Result<usize> {
    use io::ErrorKind::{Interrupted, WouldBlock};
    match result {
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Ok(0),
        result => result,
    }
}

/// The number of received bytes: 0 if the call would have blocked.
fn received(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        result => unless_blocked(result),
    }
}

/// Moves decrypted bytes. Returns whether there were any.
fn drain(tls: &mut Connection, frames: &mut Frames) -> io::Result<bool> {
    let mut any = false;
    loop {
        match tls.reader().read(frames.room()) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                frames.filled(count);
                any = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
            Err(error) => return Err(error),
        }
    }
}

/// The error with its remedy.
fn explain(error: Error) -> io::Error {
    use AlertDescription as Alert;
    let expired = "has expired: make a new key with `efa-emu bridge key`, for all machines";
    let other = "use the same --key file on all machines";
    let text = match &error {
        Error::InvalidCertificate(reason) => match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("its certificate {expired} ({error})")
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                format!(
                    "its certificate is not valid yet: look at the clocks of both machines ({error})"
                )
            }
            _ => format!("it has another key: {other} ({error})"),
        },
        // TLS has the same alert for certificates that are expired and not yet valid.
        Error::AlertReceived(Alert::CertificateExpired) => format!(
            "it says that the certificate of this machine is not valid by its clock: look at the clocks of both \
             machines; if they agree, it {expired}"
        ),
        Error::AlertReceived(
            Alert::UnknownCA
            | Alert::DecryptError
            | Alert::BadCertificate
            | Alert::CertificateUnknown,
        ) => format!("it says that this machine has another key: {other}"),
        Error::AlertReceived(Alert::CertificateRequired) | Error::NoCertificatesPresented => {
            format!("it shows no certificate: {other}")
        }
        Error::InvalidMessage(_) | Error::General(_) => {
            format!("it does not speak TLS, so it is not a bridge ({error})")
        }
        _ => format!("TLS fails: {error}"),
    };
    io::Error::other(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::TcpListener;
    use std::time::SystemTime;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    pub(crate) fn valid() -> Key {
        let now = SystemTime::now();
        Key::between(now - DAY, now + DAY)
    }

    /// Both ends of a connection.
    pub(crate) fn meet(dialer: &Key, acceptor: &Key) -> [io::Result<SecureConnection>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                SecureConnection::begin(stream, Role::Acceptor, acceptor)
            });
            let stream = TcpStream::connect(address).unwrap();
            let dialed =
                SecureConnection::begin(stream, Role::Dialer, dialer).and_then(|mut secured| {
                    // The first record of the other end shows whether it has accepted the local
                    // certificate.
                    secured.send(&[8, 0, 0, 0, 1, 0, 0, 0])?;
                    Ok(secured)
                });
            [dialed, accepting.join().unwrap()]
        })
    }

    #[test]
    fn data_after_the_greeting_arrives_encrypted_and_plain() {
        let key = valid();
        for plain in [false, true] {
            let [dialer, acceptor] = meet(&key, &key).map(Result::unwrap);
            let mut acceptor = acceptor;
            assert_eq!(acceptor.receive(100).unwrap(), [8, 0, 0, 0, 1, 0, 0, 0]);
            let mut from = dialer.into_wire(plain).unwrap();
            let mut to = acceptor.into_wire(plain).unwrap();
            let mut bytes = Vec::new();
            // More than the socket buffers can hold.
            let mut lengths = vec![0, 1, 70_000];
            lengths.extend([900_000; 15]);
            for length in lengths.iter().copied() {
                frames::append(&mut bytes, 16, &vec![length as u8; length]);
            }
            let (mut rest, mut frames, mut seen) = (&bytes[..], Frames::new(), Vec::new());
            let mut was_blocked = false;
            while seen.len() < lengths.len() {
                let sent = from.send(rest).unwrap();
                was_blocked |= sent < rest.len() || from.has_unsent();
                rest = &rest[sent..];
                to.receive(&mut frames).unwrap();
                while let Some(frames::Frame::Message(message)) = frames.next().unwrap() {
                    let content = &message[frames::HEADER..];
                    assert!(content.iter().all(|byte| *byte == content.len() as u8));
                    seen.push(content.len());
                }
            }
            assert_eq!(seen, lengths);
            assert!(was_blocked && rest.is_empty() && !from.has_unsent());
            // The other end notices it, too.
            from.cut();
            let error = loop {
                match to.receive(&mut frames) {
                    Ok(any) => assert!(!any),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn sent_bytes_arrive_despite_unread_ones() {
        let key = valid();
        for plain in [false, true] {
            let [dialer, mut acceptor] = meet(&key, &key).map(Result::unwrap);
            acceptor.receive(100).unwrap();
            let [mut from, mut to] = [dialer, acceptor].map(|end| end.into_wire(plain).unwrap());
            to.send(&[1; 8]).unwrap();
            // More than the socket buffers can hold.
            let mut sent = 0;
            loop {
                match from.send(&[0; 100_000]).unwrap() {
                    0 => break,
                    count => sent += count,
                }
            }
            let (mut frames, mut seen) = (Frames::new(), 0);
            let mut receive = || {
                to.receive(&mut frames)?;
                Ok::<_, io::Error>(frames.discard())
            };
            while from.has_unsent() {
                from.send(&[]).unwrap();
                seen += receive().unwrap();
            }
            let until = Instant::now() + Duration::from_secs(3600);
            let finishing = std::thread::spawn(move || from.finish(until));
            let error = loop {
                match receive() {
                    Ok(count) => seen += count,
                    Err(error) => break error,
                }
            };
            assert_eq!((seen, error.kind()), (sent, io::ErrorKind::UnexpectedEof));
            drop(to);
            finishing.join().unwrap();
        }
    }

    /// The client sends continuously, but never a complete greeting.
    #[test]
    fn a_slow_greeting_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let begun = std::thread::spawn(move || {
            let patience = Duration::from_millis(200);
            SecureConnection::begin_within(patience, stream, Role::Acceptor, &valid()).err()
        });
        // A TLS record of the largest length, which needs twelve minutes at this rate.
        let record = [&[22, 3, 1, 0x40, 0][..], &[0; 0x4000]].concat();
        for byte in record {
            if begun.is_finished() || stranger.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(45));
        }
        let error = begun.join().unwrap().expect("it is no bridge");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    /// The dialer must be authenticated too.
    #[test]
    fn trust_in_one_direction_is_not_mutual() {
        let good = valid();
        for stranger in [
            good.without_certificate(),
            good.with_certificate_of(&valid()),
        ] {
            let [_, acceptor] = meet(&stranger, &good);
            let complaint = acceptor.err().expect("it is refused").to_string();
            assert!(complaint.contains("same --key file"), "{complaint}");
        }
    }

    #[test]
    fn both_ends_refuse_unfit_keys() {
        let now = SystemTime::now();
        let expired = Key::between(now - 2 * DAY, now - DAY);
        let early = Key::between(now + DAY, now + 2 * DAY);
        let complaint = |ends: [io::Result<SecureConnection>; 2]| {
            let texts = ends.map(|end| end.err().map_or(String::new(), |error| error.to_string()));
            texts.concat()
        };
        for (key, text) in [
            (&expired, "certificate has expired"),
            (&early, "look at the clocks"),
            (&valid(), "it has another key"),
        ] {
            let good = valid();
            let as_dialer = complaint(meet(key, &good));
            assert!(
                as_dialer.contains("key") || as_dialer.contains(text),
                "{as_dialer}"
            );
            let as_acceptor = complaint(meet(&good, key));
            assert!(
                as_acceptor.contains("key") || as_acceptor.contains(text),
                "{as_acceptor}"
            );
        }
        // Both from one authority.
        let both = complaint(meet(&expired, &expired));
        assert!(both.contains("certificate has expired"), "{both}");
        let both = complaint(meet(&early, &early));
        assert!(both.contains("look at the clocks"), "{both}");
    }
}
