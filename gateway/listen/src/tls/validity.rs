//! The validity period of a certificate.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use yasna::{ASN1Result, BERReader, BERReaderSeq, Tag, tags::TAG_UTCTIME};

/// The validity period of a certificate, in seconds since 1970 (RFC 5280 section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    not_before: i64,
    not_after: i64,
}

impl Validity {
    /// Reads the validity period of a certificate, or returns `None` if the certificate cannot be parsed.
    pub(super) fn parse(certificate: &CertificateDer<'_>) -> Option<Self> {
        yasna::parse_der(certificate, |certificate| {
            certificate.read_sequence(|parts| {
                let validity = parts.next().read_sequence(read_validity)?;
                skip_rest(parts)?;
                Ok(validity)
            })
        })
        .ok()
    }

    /// Returns the last second of the period.
    pub(super) fn not_after(self) -> i64 {
        self.not_after
    }

    /// Returns why clients refuse the certificate at `now`, or `None` if it is valid.
    pub(crate) fn problem(self, now: SystemTime) -> Option<String> {
        let unix = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed();
        if unix > self.not_after {
            Some(format!("the certificate expired at {}", rfc3339(self.not_after)))
        } else if unix < self.not_before {
            Some(format!("the certificate is not valid before {}", rfc3339(self.not_before)))
        } else {
            None
        }
    }
}

/// Reads a `TBSCertificate` (RFC 5280 section 4.1).
fn read_validity(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<Validity> {
    fields.read_optional(|version| version.read_tagged(Tag::context(0), |number| number.read_der()))?;
    for _ in ["serialNumber", "signature", "issuer"] {
        fields.next().read_der()?;
    }
    let validity = fields.next().read_sequence(|times| {
        Ok(Validity { not_before: read_time(times.next())?, not_after: read_time(times.next())? })
    })?;
    skip_rest(fields)?;
    Ok(validity)
}

/// Reads a time. From 2050 on it has four digits of the year.
fn read_time(time: BERReader<'_, '_>) -> ASN1Result<i64> {
    if time.lookahead_tag()? == TAG_UTCTIME {
        Ok(time.read_utctime()?.datetime().unix_timestamp())
    } else {
        Ok(time.read_generalized_time()?.datetime().unix_timestamp())
    }
}

fn skip_rest(fields: &mut BERReaderSeq<'_, '_>) -> ASN1Result<()> {
    while fields.read_optional(|field| field.read_der())?.is_some() {}
    Ok(())
}

fn rfc3339(unix: i64) -> String {
    let since = Duration::from_secs(u64::try_from(unix).unwrap_or_default());
    let time = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn certificate_is_valid_from_its_first_to_its_last_second() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2026, 1, 1), date_time_ymd(2027, 1, 1));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let validity = Validity::parse(certificate.der()).unwrap();
        let at =
            |unix: i64| validity.problem(SystemTime::UNIX_EPOCH + Duration::from_secs(unix.unsigned_abs()));
        let (first, last) = (1_767_225_600, 1_798_761_600);
        assert_eq!(validity.not_after(), last);
        assert_eq!(at(first - 1).unwrap(), "the certificate is not valid before 2026-01-01T00:00:00Z");
        assert_eq!(at(first), None);
        assert_eq!(at(last), None);
        assert_eq!(at(last + 1).unwrap(), "the certificate expired at 2027-01-01T00:00:00Z");
    }

    #[test]
    fn years_from_2050_on_have_four_digits() {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(2049, 12, 31), date_time_ymd(2050, 1, 1));
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let validity = Validity::parse(certificate.der()).unwrap();
        assert_eq!((validity.not_before, validity.not_after), (2_524_521_600, 2_524_608_000));
    }

    #[test]
    fn truncated_certificate_has_no_validity() {
        let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
        let der = certificate.der();
        assert!(Validity::parse(der).is_some());
        assert!(
            (0..der.len()).all(|length| Validity::parse(&CertificateDer::from(&der[..length])).is_none())
        );
    }

    #[test]
    fn invalid_certificate_has_no_validity() {
        assert_eq!(Validity::parse(&CertificateDer::from(b"no certificate".to_vec())), None);
    }
}
