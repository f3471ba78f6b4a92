//! An authority, and the certificates that it hands out.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, PublicKeyData, RevokedCertParams, SerialNumber, SignatureAlgorithm,
    date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use x509_cert::der::Decode;
use x509_cert::spki::SubjectPublicKeyInfoRef;

/// A certificate with its key.
pub(crate) struct Paper {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    key: KeyPair,
}

impl Paper {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).expect("the key is in a known form")
    }

    pub(crate) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

/// The public half of an RSA key that OpenSSL made. No library here need be able to sign with a key of its size.
pub(crate) struct RsaPublic(Vec<u8>);

impl RsaPublic {
    pub(crate) fn of(pem: &str) -> Self {
        let info = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).expect("it is a key in PEM");
        let info = SubjectPublicKeyInfoRef::from_der(&info).expect("it is a key");
        Self(info.subject_public_key.raw_bytes().to_owned())
    }
}

impl PublicKeyData for RsaPublic {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_RSA_SHA256
    }
}

/// An authority that signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no name is a bad one");
        params.distinguished_name.push(DnType::CommonName, "an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("there is entropy");
        Self(CertifiedIssuer::self_signed(params, key).expect("it can sign"))
    }

    pub(crate) fn certificate(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// A certificate for a common name and alternative names. An empty common name is left out.
    pub(crate) fn sign(&self, common: &str, alternatives: &[&str], serial: u64) -> Paper {
        let alternatives: Vec<_> = alternatives.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(alternatives).expect("the names are good");
        params.distinguished_name.remove(DnType::CommonName);
        if !common.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("there is entropy");
        let certificate = params.signed_by(&key, &self.0).expect("it can be signed");
        Paper { certificate: certificate.der().clone(), certificate_pem: certificate.pem(), key }
    }

    /// A certificate for a server or client with this key, in PEM.
    pub(crate) fn sign_key(&self, key: &RsaPublic) -> String {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("the name is good");
        params.distinguished_name.push(DnType::CommonName, "a holder of an RSA key");
        params.signed_by(key, &self.0).expect("it can be signed").pem()
    }

    /// A list that says that one certificate is revoked.
    pub(crate) fn revoke(&self, serial: u64) -> String {
        // Until the year 2100.
        self.revoke_until(serial, Duration::from_secs(4_102_444_800))
    }

    /// The same list, valid until this long after the beginning of 1970.
    pub(crate) fn revoke_until(&self, serial: u64, end: Duration) -> String {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(1970, 1, 1) + end,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).and_then(|list| list.pem()).expect("it can be signed")
    }

    /// Writes what a server needs: `ca-cert.pem`, `server-cert.pem`, `server-key.pem`.
    pub(crate) fn equip(&self, folder: &Path) {
        let server = self.sign("a server", &["localhost"], 1);
        for (name, text) in [
            ("ca-cert.pem", &self.0.pem()),
            ("server-cert.pem", &server.certificate_pem),
            ("server-key.pem", &server.key_pem()),
        ] {
            fs::write(folder.join(name), text).expect("there is room for a file");
        }
    }
}
