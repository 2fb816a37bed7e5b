//! A certificate authority for one machine, and the certificate of kas.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, Error,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};

/// The days for which the certificates are valid.
const VALID_DAYS: u64 = 365;
/// The clock of a node may be behind that of this machine.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// The certificates of kas and its key (PEM).
pub(super) struct QuickstartCertificates {
    /// The authority.
    pub(super) authority: String,
    /// The certificate of kas and the authority. `kas kubeconfig` finds the authority there.
    pub(super) chain: String,
    /// The key of the certificate of kas.
    pub(super) key: String,
}

impl QuickstartCertificates {
    /// Makes an authority, and a certificate for names and addresses. Nothing else can be signed later: the key of the authority
    /// is dropped.
    pub(super) fn new(names: Vec<String>, now: SystemTime) -> Result<Self, Error> {
        let issuer = CertifiedIssuer::self_signed(authority(now), KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let certificate = server(names, now)?.signed_by(&key, &issuer)?;
        let [authority, certificate, key] =
            [issuer.pem(), certificate.pem(), key.serialize_pem()].map(|pem| pem.replace('\r', ""));
        Ok(Self { chain: format!("{certificate}{authority}"), authority, key })
    }
}

fn authority(now: SystemTime) -> CertificateParams {
    let mut params = with_lifetime(CertificateParams::default(), now);
    params.distinguished_name = common_name("kas quickstart authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn server(names: Vec<String>, now: SystemTime) -> Result<CertificateParams, Error> {
    let mut params = with_lifetime(CertificateParams::new(names)?, now);
    params.distinguished_name = common_name("kas");
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

fn with_lifetime(mut params: CertificateParams, now: SystemTime) -> CertificateParams {
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = date_time_ymd(1970, 1, 1) + since_epoch;
    params.not_before = now - CLOCK_SKEW;
    params.not_after = now + Duration::from_secs(VALID_DAYS * 24 * 3600);
    params
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};
    use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage, anchor_from_trusted_cert};

    use super::*;

    /// Verifies the certificate of kas as agentk and kubectl do.
    fn verify(made: &QuickstartCertificates, name: &str, at: SystemTime) -> Result<(), webpki::Error> {
        let authority = CertificateDer::from_pem_slice(made.authority.as_bytes()).unwrap();
        let first = CertificateDer::from_pem_slice(made.chain.as_bytes()).unwrap();
        let (anchors, leaf) = ([anchor_from_trusted_cert(&authority)?], EndEntityCert::try_from(&first)?);
        let time = UnixTime::since_unix_epoch(at.duration_since(SystemTime::UNIX_EPOCH).unwrap());
        let usage = KeyUsage::server_auth();
        leaf.verify_for_usage(ALL_VERIFICATION_ALGS, &anchors, &[], time, usage, None, None)?;
        leaf.verify_is_valid_for_subject_name(&ServerName::try_from(name).unwrap())
    }

    #[test]
    fn certificate_is_of_the_authority_for_each_name_and_for_a_year() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let names = ["kas.test", "192.0.2.7", "::1"].map(str::to_owned).to_vec();
        let made = QuickstartCertificates::new(names, now).unwrap();
        for name in ["kas.test", "192.0.2.7", "::1"] {
            verify(&made, name, now).unwrap();
        }
        assert!(verify(&made, "other.test", now).is_err());
        let day = Duration::from_secs(24 * 3600);
        assert!(verify(&made, "kas.test", now - day).is_err());
        assert!(verify(&made, "kas.test", now + 364 * day).is_ok());
        assert!(verify(&made, "kas.test", now + 366 * day).is_err());
        let other = QuickstartCertificates::new(vec!["kas.test".to_owned()], now).unwrap();
        let mixed = QuickstartCertificates { authority: other.authority, ..made };
        assert!(verify(&mixed, "kas.test", now).is_err());
    }
}
