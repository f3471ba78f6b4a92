//! TLS as a server is told of it: its certificate, its key, and whose certificates clients must have.

mod fitness;
mod verifier;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use self::verifier::Verifier;
use crate::nbd::negotiation::Encryption;

/// The server's certificate, followed by those between it and the one that clients trust.
const CERTIFICATE: &str = "server-cert.pem";
/// The key of the server's certificate.
const KEY: &str = "server-key.pem";
/// The certificates that those of clients are signed by.
const AUTHORITY: &str = "ca-cert.pem";
/// Certificates of clients that are no longer good.
const REVOKED: &str = "ca-crl.pem";
/// Longest name of a client that is shown, in characters: what X.509 allows a common name.
const MAX_NAME: usize = 64;

/// What is wrong with a file that TLS needs.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    what: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for TlsError {}

/// How a server encrypts its connections. Clones are one: what one of them reads again counts for all.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Arc<Files>,
    /// What connections to come are encrypted by.
    config: Arc<Mutex<Arc<ServerConfig>>>,
    is_required: bool,
}

/// What TLS is made of. Version 1.2 does not change keys, so that with AES-GCM a connection ends without a word after
/// 2^24 records; with ChaCha20-Poly1305 it does not.
fn provider() -> CryptoProvider {
    let mut provider = default_provider();
    provider.cipher_suites.retain(|suite| {
        suite.tls13().is_some() || suite.suite().as_str().is_some_and(|name| name.contains("CHACHA20"))
    });
    provider
}

impl Tls {
    /// Reads the files of a folder, which are named as other NBD servers name them: `server-cert.pem` and
    /// `server-key.pem`, and if clients are verified, `ca-cert.pem` and, where there is one, `ca-crl.pem`. A client
    /// that is verified must show a certificate that is signed by one of `ca-cert.pem` and not listed in `ca-crl.pem`.
    ///
    /// Clients may use TLS then, version 1.3, or 1.2 with ChaCha20-Poly1305, and need not; see
    /// [`required`](Self::required).
    ///
    /// # Errors
    /// A file is not there or not what it should be, or `ca-crl.pem` is past its date; the text says which, and what is
    /// wrong with it.
    pub fn from_folder(folder: impl AsRef<Path>, verifies_clients: bool) -> Result<Self, TlsError> {
        let files = Files { folder: folder.as_ref().to_owned(), verifies_clients };
        let config = Arc::new(Mutex::new(files.read()?));
        Ok(Self { files: Arc::new(files), config, is_required: false })
    }

    /// Reads the files again. What they say now counts for connections to come; those that there are stay as they are.
    ///
    /// # Errors
    /// As for [`from_folder`](Self::from_folder). Nothing has changed then, for all files are read before any of them
    /// counts.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.files.read()?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Whether clients that use TLS must show certificates.
    #[must_use]
    pub fn verifies_clients(&self) -> bool {
        self.files.verifies_clients
    }

    /// The same, but a client that does not use TLS gets nothing.
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

    /// What a connection that begins now is encrypted by.
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
    /// Reads all of them.
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
            fitness::check_own(certificate).map_err(|unfit| fault(&path(CERTIFICATE), &unfit.to_string()))?;
        }
        fitness::check_key(&key).map_err(|unfit| fault(&path(KEY), &unfit.to_string()))?;
        let mut config = builder.with_single_cert(certificates, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => fault(&path(KEY), &format!("not the key of {CERTIFICATE}")),
            // The provider says so of keys alone.
            Error::General(what) => fault(&path(KEY), &format!("{what}; {}", fitness::usable_keys())),
            error => wrong(CERTIFICATE, &error),
        })?;
        // Connections are few and long: what the next one could do without is not worth remembering.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

fn fault(path: &Path, what: &str) -> TlsError {
    TlsError { path: path.to_owned(), what: what.to_owned() }
}

/// An error as it is told of a certificate of one's own.
fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(what) => format!("the certificate cannot be used: {what}"),
        error => error.to_string(),
    }
}

/// What a client's end of TLS did wrong, as the log tells it.
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

/// What an error means for a file that should hold one of `wanted` or more.
fn unread(path: &Path, wanted: &str, error: &pem::Error) -> TlsError {
    match error {
        pem::Error::Io(error) => fault(path, &error.to_string()),
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

/// The certificates in a file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unread = |error| unread(path, "certificate", &error);
    let found = CertificateDer::pem_file_iter(path).map_err(unread)?.collect::<Result<Vec<_>, _>>().map_err(unread)?;
    if found.is_empty() { Err(unread(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unread(path, "private key without a password", &error))
}

/// Who decides whether a client's certificate is good.
fn verifier(folder: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let (authority, revoked) = (folder.join(AUTHORITY), folder.join(REVOKED));
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&authority)? {
        fitness::check(&certificate).map_err(|unfit| fault(&authority, &unfit.to_string()))?;
        roots.add(certificate).map_err(|error| fault(&authority, &words(&error)))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if revoked.try_exists().map_err(|error| fault(&revoked, &error.to_string()))? {
        let unread = |error| unread(&revoked, "list of revoked certificates", &error);
        let lists = CertificateRevocationListDer::pem_file_iter(&revoked).map_err(unread)?;
        let lists = lists.collect::<Result<Vec<_>, _>>().map_err(unread)?;
        if lists.is_empty() {
            return Err(unread(pem::Error::NoItemsFound));
        }
        for list in &lists {
            fitness::check_date(list).map_err(|unfit| fault(&revoked, &unfit.to_string()))?;
        }
        // A list says something about its own authority's certificates; one without a list was told nothing.
        builder = builder.with_crls(lists).only_check_end_entity_revocation().allow_unknown_revocation_status();
        // It may come to its end while the server runs.
        builder = builder.enforce_revocation_expiration();
    }
    // Without a list only the authorities can be wrong, and they have been read.
    let verifier = builder.build().map_err(|error| fault(&revoked, &error.to_string()))?;
    Ok(Arc::new(Verifier(verifier)))
}

/// Who a certificate says it is for: the common name of its subject, or else the first of its alternative names that is
/// text. Empty ones count for none.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let certificate = certificate.tbs_certificate();
    let common = certificate.subject().common_name().ok().flatten().map(|name| name.value().into_owned());
    let alternative = || {
        let (_, names) = certificate.get_extension::<SubjectAltName>().ok()??;
        names.0.iter().find_map(|name| match name {
            GeneralName::Rfc822Name(text) | GeneralName::DnsName(text) => Some(text.to_string()),
            GeneralName::UniformResourceIdentifier(text) => Some(text.to_string()),
            _ => None,
        })
    };
    common.filter(|name| !name.is_empty()).or_else(alternative).filter(|name| !name.is_empty())
}

/// A name as it is shown: nothing but what can stand in a line, and no more of it than is needed.
pub(crate) fn shown(name: &str) -> String {
    name.chars().take(MAX_NAME).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}
