//! TLS as a server is configured with it: its certificate, its key, and the authority that must sign clients'
//! certificates.

mod validation;
mod verifier;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_engine::open_regular;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};

use self::verifier::Verifier;
use crate::nbd::negotiation::Encryption;

/// The server's certificate, followed by the certificates between it and the one that clients trust.
const CERTIFICATE: &str = "server-cert.pem";
/// The key of the server's certificate.
const KEY: &str = "server-key.pem";
/// The certificates of the authorities that must sign the clients' certificates.
const AUTHORITY: &str = "ca-cert.pem";
/// The list of clients' certificates that are no longer valid.
const REVOKED: &str = "ca-crl.pem";

/// What is wrong with a file that TLS needs.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct TlsError {
    path: PathBuf,
    what: String,
    is_denied: bool,
}

impl TlsError {
    /// Returns true if this user may not read the file.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        self.is_denied
    }
}

/// How a server encrypts its connections. All clones share one configuration: a reload of one clone counts for all.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Arc<Files>,
    /// The configuration for new connections.
    config: Arc<Mutex<Arc<ServerConfig>>>,
    is_required: bool,
}

/// Returns the cryptography of TLS. Version 1.2 does not change keys, so with AES-GCM a connection would end without a
/// message after 2^24 records. With ChaCha20-Poly1305 it does not.
fn provider() -> CryptoProvider {
    let mut provider = default_provider();
    provider.cipher_suites.retain(|suite| {
        suite.tls13().is_some() || suite.suite().as_str().is_some_and(|name| name.contains("CHACHA20"))
    });
    provider
}

impl Tls {
    /// Reads the files of a folder. The names of the files are those that other NBD servers use: `server-cert.pem` and
    /// `server-key.pem`; if clients are verified, also `ca-cert.pem` and, if it exists, `ca-crl.pem`. A client that is
    /// verified must show a certificate that is signed by one of `ca-cert.pem` and not listed in `ca-crl.pem`.
    ///
    /// Clients may then use TLS, version 1.3, or 1.2 with ChaCha20-Poly1305. Clients need not use TLS, see
    /// [`required`](Self::required).
    ///
    /// # Errors
    /// A file does not exist or has the wrong contents, or `ca-crl.pem` is past its date. The text says which file, and
    /// what is wrong with it.
    pub fn from_folder(folder: impl AsRef<Path>, verifies_clients: bool) -> Result<Self, TlsError> {
        let files = Files { folder: folder.as_ref().to_owned(), verifies_clients };
        let config = Arc::new(Mutex::new(files.read()?));
        Ok(Self { files: Arc::new(files), config, is_required: false })
    }

    /// Reads the files again. The new contents count for new connections. Existing connections do not change.
    ///
    /// # Errors
    /// As for [`from_folder`](Self::from_folder). Then nothing has changed, because all files are read before any of
    /// them counts.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.read()?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Returns true if clients that use TLS must show certificates.
    #[must_use]
    pub fn verifies_clients(&self) -> bool {
        self.files.verifies_clients
    }

    /// Returns the same configuration, but a client that does not use TLS gets nothing.
    #[must_use]
    pub fn required(mut self) -> Self {
        self.is_required = true;
        self
    }

    pub(crate) fn is_required(&self) -> bool {
        self.is_required
    }

    pub(crate) fn encryption(&self) -> Encryption {
        if self.is_required { Encryption::Required } else { Encryption::Offered }
    }

    /// Returns the configuration for a connection that begins now.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Where the files are.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    verifies_clients: bool,
}

impl Files {
    /// Reads all files.
    fn read(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let path = |name: &str| self.folder.join(name);
        let provider = Arc::new(provider());
        let wrong = |name: &str, error: &Error| fault(&path(name), &words(error));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong(CERTIFICATE, &error))?;
        let builder = match self.verifies_clients {
            true => builder.with_client_cert_verifier(verifier(&self.folder, provider)?),
            false => builder.with_no_client_auth(),
        };
        let (certificates, key) = (certificates(&path(CERTIFICATE))?, key(&path(KEY))?);
        for certificate in &certificates {
            validation::check_own(certificate).map_err(|unfit| fault(&path(CERTIFICATE), &unfit.to_string()))?;
        }
        validation::check_key(&key).map_err(|unfit| fault(&path(KEY), &unfit.to_string()))?;
        let mut config = builder.with_single_cert(certificates, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => fault(&path(KEY), &format!("not the key of {CERTIFICATE}")),
            // The provider reports this error only for keys.
            Error::General(what) => fault(&path(KEY), &format!("{what}; {}", validation::usable_keys())),
            error => wrong(CERTIFICATE, &error),
        })?;
        // Connections are few and long, so sessions are not remembered for later connections.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn fault(path: &Path, what: &str) -> TlsError {
    TlsError { path: path.to_owned(), what: what.to_owned(), is_denied: false }
}

/// Returns the text of an error in the server's own certificate.
fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(what) => format!("the certificate cannot be used: {what}"),
        error => error.to_string(),
    }
}

/// Returns the text of an error of the client's side of TLS, for the log.
pub(crate) fn told(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(unfit)) => format!("the client's certificate: {unfit}"),
        Error::InvalidCertificate(CertificateError::ExpiredRevocationListContext { .. }) => format!(
            "the list of revoked certificates, {REVOKED}, is past its date, so no certificate of its authority is good; put \
             the authority's next list in its place, and have the files read again"
        ),
        error => error.to_string(),
    }
}

/// Returns the error for a file that should hold one or more of `wanted`.
fn unread(path: &Path, wanted: &str, error: &pem::Error) -> TlsError {
    match error {
        pem::Error::NoItemsFound => fault(path, &format!("there is no {wanted} in it, in PEM")),
        pem::Error::MissingSectionEnd { end_marker } => {
            fault(path, &format!("-----BEGIN {}----- has no end", String::from_utf8_lossy(end_marker).escape_debug()))
        }
        pem::Error::IllegalSectionStart { line } => {
            fault(path, &format!("{:?} begins nothing in PEM", String::from_utf8_lossy(line)))
        }
        error => fault(path, &error.to_string()),
    }
}

/// Reads a regular file.
fn contents(path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let mut bytes = Vec::new();
        open_regular(path, "not a regular file")?.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error: io::Error| {
        let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
        TlsError { is_denied, ..fault(path, &error.to_string()) }
    })
}

/// What is in a file in PEM: one or more of `wanted`.
fn items<T: PemObject>(path: &Path, wanted: &str) -> Result<Vec<T>, TlsError> {
    let bytes = contents(path)?;
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unread(path, wanted, &pem::Error::NoItemsFound)),
        found => found.map_err(|error| unread(path, wanted, &error)),
    }
}

/// Returns the certificates in a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    items(path, "certificate")
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unread = |error| unread(path, "private key without a password", &error);
    PrivateKeyDer::from_pem_slice(&contents(path)?).map_err(unread)
}

/// Returns the verifier that decides whether a client's certificate is valid.
fn verifier(folder: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (authority, revoked) = (folder.join(AUTHORITY), folder.join(REVOKED));
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&authority)? {
        validation::check(&certificate).map_err(|unfit| fault(&authority, &unfit.to_string()))?;
        roots.add(certificate).map_err(|error| fault(&authority, &words(&error)))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if revoked.try_exists().map_err(|error| fault(&revoked, &error.to_string()))? {
        let lists: Vec<CertificateRevocationListDer<'_>> = items(&revoked, "list of revoked certificates")?;
        for list in &lists {
            validation::check_date(list).map_err(|unfit| fault(&revoked, &unfit.to_string()))?;
        }
        // A list covers only the certificates of its own authority. For an authority without a list, nothing is known
        // to be revoked.
        builder = builder.with_crls(lists).only_check_end_entity_revocation().allow_unknown_revocation_status();
        // A list may reach its end date while the server runs.
        builder = builder.enforce_revocation_expiration();
    }
    // Without a list only the authorities can be wrong, and these have been read already.
    let verifier = builder.build().map_err(|error| fault(&revoked, &error.to_string()))?;
    Ok(Arc::new(Verifier(verifier)))
}
