//! Which certificates a caller has to trust.

use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use webpki::EndEntityCert;

use crate::config::unreadable;

/// The certificates of a PEM file; there is at least one.
pub(super) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = std::fs::read(file).map_err(|error| format!("{}: {}", file.display(), unreadable(&error)))?;
    let certificates =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if certificates.is_empty() {
        return Err(format!("{}: holds no PEM certificate", file.display()));
    }

    Ok(certificates)
}

/// Those of a server's chain that vouch for themselves: no system trusts them unless it is told to.
pub(super) fn own_authority(mut chain: Vec<CertificateDer<'static>>) -> Vec<CertificateDer<'static>> {
    chain.retain(|certificate| {
        EndEntityCert::try_from(certificate).is_ok_and(|it| it.issuer() == it.subject())
    });
    chain
}

/// PEM again, and of certificates only: a file may hold a key beside them, which is nothing for a kubeconfig.
pub(super) fn pem(certificates: &[CertificateDer<'_>]) -> Option<String> {
    /// RFC 7468 section 2.
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
    fn what_vouches_for_itself_is_trusted_and_nothing_else() {
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
    fn a_key_in_the_file_stays_out_of_the_kubeconfig() {
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
