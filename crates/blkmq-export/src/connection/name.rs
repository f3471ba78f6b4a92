//! The name in a client's certificate.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Returns the name in a certificate: the common name of its subject, or else the first of its alternative names that
/// is text. Empty names are ignored.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
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
