//! The requirements for certificates and keys here. Certificates and keys are checked before they are used, and errors
//! are in plain words.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use x509_cert::Version;
use x509_cert::certificate::Rfc5280;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{AnyRef, UintRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, SliceReader};
use x509_cert::{Certificate, der};

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
/// Sizes in bits of RSA keys that can sign, and so can be a server's key. The provider of cryptography accepts these.
const SIGNING: [usize; 3] = [2048, 3072, 4096];
/// Sizes in bits of RSA keys whose signatures can be verified, such as those of authorities and clients.
const VERIFIED: RangeInclusive<usize> = 2048..=8192;

/// Why a certificate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unusable(String);

/// Returns a reader for the fields of a sequence in DER.
fn fields(bytes: &[u8]) -> Option<SliceReader<'_>> {
    SliceReader::new(AnyRef::from_der(bytes).ok()?.value()).ok()
}

fn bits(modulus: UintRef<'_>) -> usize {
    let bytes = modulus.as_bytes();
    bytes.first().map_or(0, |first| bytes.len() * 8 - first.leading_zeros() as usize)
}

/// Returns the size in bits of a certificate's key. `None` if the key is not an RSA key.
fn rsa_bits(certificate: &Certificate) -> Option<usize> {
    let info = certificate.tbs_certificate().subject_public_key_info();
    if info.algorithm.oid != RSA {
        return None;
    }
    let mut key = fields(info.subject_public_key.as_bytes()?)?;
    Some(bits(UintRef::decode(&mut key).ok()?))
}

/// Returns the size in bits of a private key. `None` if it is not an RSA key.
fn rsa_bits_of_private(key: &PrivateKeyDer<'_>) -> Option<usize> {
    let bytes = match key {
        PrivateKeyDer::Pkcs1(key) => key.secret_pkcs1_der(),
        PrivateKeyDer::Pkcs8(key) => inner(key.secret_pkcs8_der()).ok().flatten()?,
        _ => return None,
    };
    let mut key = fields(bytes)?;
    let _version = AnyRef::decode(&mut key).ok()?;
    Some(bits(UintRef::decode(&mut key).ok()?))
}

/// Returns the RSA key within a key in PKCS#8.
fn inner(bytes: &[u8]) -> der::Result<Option<&[u8]>> {
    let Some(mut key) = fields(bytes) else { return Ok(None) };
    let _version = AnyRef::decode(&mut key)?;
    let algorithm = AnyRef::decode(&mut key)?;
    let is_rsa = ObjectIdentifier::decode(&mut SliceReader::new(algorithm.value())?)? == RSA;
    let key = AnyRef::decode(&mut key)?;
    Ok(is_rsa.then_some(key.value()))
}

/// Checks a certificate whose signatures are verified: an authority's or a client's. A certificate that cannot be read
/// is accepted here, because the library refuses it later.
pub(super) fn check(certificate: &CertificateDer<'_>) -> Result<(), Unusable> {
    let Ok(certificate) = Certificate::from_der(certificate) else { return Ok(()) };
    check_version(&certificate)?;
    match rsa_bits(&certificate) {
        Some(bits) if !VERIFIED.contains(&bits) => {
            let (least, most) = VERIFIED.into_inner();
            Err(Unusable(format!("its RSA key has {bits} bits; RSA keys of {least} to {most} bits can be verified")))
        }
        _ => Ok(()),
    }
}

/// Checks the version of a server's own certificate, which clients verify.
pub(super) fn check_own(certificate: &CertificateDer<'_>) -> Result<(), Unusable> {
    Certificate::from_der(certificate).map_or(Ok(()), |certificate| check_version(&certificate))
}

fn check_version(certificate: &Certificate) -> Result<(), Unusable> {
    let number = match certificate.tbs_certificate().version() {
        Version::V3 => return Ok(()),
        Version::V2 => 2,
        Version::V1 => 1,
    };
    Err(Unusable(format!(
        "it is a certificate of X.509 version {number}, which does not say what it is for; version 3 is needed, which \
         'openssl x509 -req' makes with -extfile"
    )))
}

/// Checks a server's own key.
pub(super) fn check_key(key: &PrivateKeyDer<'_>) -> Result<(), Unusable> {
    match rsa_bits_of_private(key) {
        Some(bits) if !SIGNING.contains(&bits) => {
            Err(Unusable(format!("the RSA key has {bits} bits; {}", usable_keys())))
        }
        _ => Ok(()),
    }
}

/// Returns which keys a server can have.
pub(super) fn usable_keys() -> String {
    let [small, middle, large] = SIGNING;
    format!(
        "a server's key is RSA of {small}, {middle} or {large} bits, or ECDSA on the curve P-256 or P-384, or Ed25519"
    )
}

/// Checks that a list of revoked certificates is not past its date.
pub(super) fn check_date(list: &CertificateRevocationListDer<'_>) -> Result<(), Unusable> {
    let Ok(list) = CertificateList::<Rfc5280>::from_der(list) else { return Ok(()) };
    let Some(next) = list.tbs_cert_list.next_update else { return Ok(()) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    if next.to_unix_duration() > now {
        return Ok(());
    }
    let date = next.to_date_time();
    Err(Unusable(format!(
        "the list of revoked certificates was good until {date}, so who was revoked since is not known; put the \
         authority's next list in its place"
    )))
}
