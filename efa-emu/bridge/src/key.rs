//! Keys: which bridges may connect.
//!
//! A key file is PEM: a certificate, its private key, and the certificate of the authority that has
//! signed it. `efa-emu bridge key` makes all three, and discards the authority's private key. The
//! bridges of a fabric share the file. Certificates of another authority work likewise if they
//! contain the name [`NAME`].

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The name in the certificates of all bridges. Only the authority determines which bridges may
/// connect.
pub(crate) const NAME: &str = "efa-emu-bridge";

/// ALPN protocol, so that another service is not mistaken for a bridge.
const PROTOCOL: &[u8] = b"efa-emu-bridge";

/// The time before now from which a key is valid, for machines whose clocks are slow.
const EARLIER: Duration = Duration::from_secs(24 * 3600);

/// The longest key file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The reason why there is no usable key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// The file cannot be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// Other users can read the file.
    #[error("{} can be read by others (mode {mode:03o}): run `chmod 600` on it", .path.display())]
    Open { path: PathBuf, mode: u32 },
    /// The file is not a key.
    #[error("{} is not a key ({reason}): make one with `efa-emu bridge key FILE`", .path.display())]
    NoKey { path: PathBuf, reason: KeyProblem },
    /// No certificate could be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// The reason why the text of a file is not a key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyProblem {
    #[error(transparent)]
    Pem(#[from] pem::Error),
    #[error("it needs the certificate of a bridge and that of its authority")]
    Incomplete,
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
}

impl KeyError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> KeyError {
        let path = path.to_owned();
        move |source| KeyError::Io {
            action,
            path,
            source,
        }
    }
}

/// Creates a key that is valid for this many days.
///
/// # Errors
/// The file exists already, or cannot be written.
pub(crate) fn make(path: &Path, days: u32) -> Result<(), KeyError> {
    let now = SystemTime::now();
    let until = now + Duration::from_secs(u64::from(days) * 24 * 3600);
    let text = text(now - EARLIER, until)?;
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(KeyError::io("create", path))?;
    file.write_all(text.as_bytes())
        .map_err(KeyError::io("write", path))
}

/// The text of a key file.
fn text(from: SystemTime, until: SystemTime) -> Result<String, rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name = named("efa-emu fabric");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    (authority.not_before, authority.not_after) = (from.into(), until.into());
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;

    let mut bridge = CertificateParams::new(vec![NAME.to_owned()])?;
    bridge.distinguished_name = named(NAME);
    bridge.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    (bridge.not_before, bridge.not_after) = (from.into(), until.into());
    let bridge_key = KeyPair::generate()?;
    let issuer = Issuer::new(authority, authority_key);
    let certificate = bridge.signed_by(&bridge_key, &issuer)?;
    Ok([
        certificate.pem(),
        bridge_key.serialize_pem(),
        authority_certificate.pem(),
    ]
    .concat())
}

fn named(name: &str) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// Certificate, private key and roots for TLS.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl Key {
    /// Reads a key file.
    pub(crate) fn load(path: &Path) -> Result<Key, KeyError> {
        let file = File::open(path).map_err(KeyError::io("open", path))?;
        let metadata = file.metadata().map_err(KeyError::io("stat", path))?;
        let mode = metadata.mode() & 0o777;
        // Secrets of Kubernetes belong to root, and are readable by the pod's group.
        let open = if metadata.uid() == 0 { 0o037 } else { 0o077 };
        if mode & open != 0 {
            let path = path.to_owned();
            return Err(KeyError::Open { path, mode });
        }
        let mut text = Vec::new();
        file.take(LONGEST)
            .read_to_end(&mut text)
            .map_err(KeyError::io("read", path))?;
        Key::parse(&text).map_err(|reason| KeyError::NoKey {
            path: path.to_owned(),
            reason,
        })
    }

    fn parse(text: &[u8]) -> Result<Key, KeyProblem> {
        let certificates: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(text)?;
        let [_, .., authority] = &certificates[..] else {
            return Err(KeyProblem::Incomplete);
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let chain = certificates[..certificates.len() - 1].to_vec();
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key.clone_key())?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        // New connections are rare.
        client.resumption = rustls::client::Resumption::disabled();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider)).build()?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // The acceptor must send no messages after the handshake that are not awaited: see
        // `secure`.
        server.send_tls13_tickets = 0;
        Ok(Key {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// A key with the same trusted authority, and without a certificate.
    #[cfg(test)]
    pub(crate) fn without_certificate(&self) -> Key {
        use rustls::client::ResolvesClientCert;
        #[derive(Debug)]
        struct NoClientCert;
        impl ResolvesClientCert for NoClientCert {
            fn resolve(
                &self,
                _: &[&[u8]],
                _: &[rustls::SignatureScheme],
            ) -> Option<Arc<rustls::sign::CertifiedKey>> {
                None
            }
            fn has_certs(&self) -> bool {
                false
            }
        }
        let mut client = ClientConfig::clone(&self.client);
        client.client_auth_cert_resolver = Arc::new(NoClientCert);
        Key {
            client: Arc::new(client),
            server: Arc::clone(&self.server),
        }
    }

    /// A key with the same trusted authority, and the certificate of another key.
    #[cfg(test)]
    pub(crate) fn with_certificate_of(&self, other: &Key) -> Key {
        let mut client = ClientConfig::clone(&self.client);
        client.client_auth_cert_resolver = Arc::clone(&other.client.client_auth_cert_resolver);
        Key {
            client: Arc::new(client),
            server: Arc::clone(&self.server),
        }
    }

    /// A key that is valid between these times, for tests.
    #[cfg(test)]
    pub(crate) fn between(from: SystemTime, until: SystemTime) -> Key {
        Key::parse(text(from, until).unwrap().as_bytes()).unwrap()
    }
}
