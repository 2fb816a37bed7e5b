//! The certificates that a caller must trust.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use webpki::EndEntityCert;

use settings::unreadable;

/// Reads the certificates of a PEM file. There is at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = files::read(file).map_err(|error| format!("{}: {}", file.display(), unreadable(&error)))?;
    let certificates =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(format!("{}: holds no PEM certificate", file.display()));
    }

    Ok(certificates)
}

/// Returns the self-signed certificates of a chain: no system trusts them by default.
pub(super) fn own_authority(mut chain: Vec<CertificateDer<'static>>) -> Vec<CertificateDer<'static>> {
    chain.retain(|certificate| {
        EndEntityCert::try_from(certificate).is_ok_and(|it| it.issuer() == it.subject())
    });
    chain
}

/// Encodes certificates as PEM. The file may also have a private key, which must not reach the kubeconfig.
pub(super) fn pem(certificates: &[CertificateDer<'_>]) -> Option<String> {
    /// The length of a line (RFC 7468 section 2).
    const LINE: usize = 64;
    let block = |certificate: &CertificateDer<'_>| {
        let encoded = STANDARD.encode(certificate);
        let lines = encoded.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line) + "\n");
        format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
    };
    (!certificates.is_empty()).then(|| certificates.iter().map(block).collect())
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    fn named(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    #[test]
    fn only_self_signed_certificates_are_trusted() {
        let mut root = named("root");
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = root.self_signed(&key).unwrap();
        let leaf = named("leaf").signed_by(&KeyPair::generate().unwrap(), &Issuer::new(root, key)).unwrap();
        let lonely = named("lonely").self_signed(&KeyPair::generate().unwrap()).unwrap();

        let of = |chain: &[&rcgen::Certificate]| {
            own_authority(chain.iter().map(|certificate| certificate.der().clone()).collect())
        };
        assert_eq!(of(&[&lonely]), [lonely.der().clone()]);
        assert_eq!(of(&[&leaf, &authority]), [authority.der().clone()]);
        assert!(of(&[&leaf]).is_empty());
    }

    #[test]
    fn private_key_is_not_copied() {
        let key = KeyPair::generate().unwrap();
        let certificate = named("kas").self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("both.pem");
        std::fs::write(&file, key.serialize_pem() + &certificate.pem()).unwrap();
        let text = pem(&certificates(&file).unwrap()).unwrap();
        assert_eq!(text, certificate.pem().replace('\r', ""));
        assert!(pem(&[]).is_none());

        std::fs::write(&file, key.serialize_pem()).unwrap();
        assert!(certificates(&file).unwrap_err().ends_with("both.pem: holds no PEM certificate"));
    }
}
