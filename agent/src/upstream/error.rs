//! Why a request got no response, sorted by what one can do about it.

use std::{error::Error as StdError, fmt, io, time::Duration};

use rustls::{AlertDescription, CertificateError};

use super::{Endpoint, stream::WriteStalled};

type Cause = Box<dyn StdError + Send + Sync>;

/// Displays as one line with the address, without credentials; the cause is part of it, and therefore not a
/// `source()` that a report would print once more.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The name is wrong, or DNS is down.
    #[error("cannot resolve {host}: {cause}")]
    Resolve { host: String, cause: io::Error },
    /// Nothing listens there, or a network policy is in between.
    #[error("cannot connect to {address}: {cause}")]
    Connect { address: String, cause: io::Error },
    /// The two sides do not trust, or do not understand, each other.
    #[error("TLS with {host} failed: {reason}")]
    Tls { host: String, reason: String },
    /// Our own certificates are not available.
    #[error("cannot prepare TLS for {host}: {}", Chain(&**cause))]
    TlsSetup { host: String, cause: Cause },
    #[error("no connection to {address} within {after:?}")]
    ConnectTimeout { address: String, after: Duration },
    #[error("no response from {address} within {after:?}")]
    ResponseTimeout { address: String, after: Duration },
    /// The server has stopped reading the request.
    #[error("{address} took no bytes of the request for {after:?}")]
    WriteTimeout { address: String, after: Duration },
    /// The server may have acted on the request.
    #[error("{address} closed the connection before its response: {}", Chain(&**cause))]
    ClosedBeforeResponse { address: String, cause: Cause },
    #[error("{address} sent something that is not a valid HTTP/1.1 response: {}", Chain(&**cause))]
    InvalidResponse { address: String, cause: Cause },
    /// The caller's side failed.
    #[error("the body of the request to {address} broke off: {}", Chain(&**cause))]
    RequestBody { address: String, cause: Cause },
    #[error("the path cannot be sent to {address}: {}", Chain(&**cause))]
    InvalidTarget { address: String, cause: Cause },
}

impl UpstreamError {
    pub(crate) fn handshake(host: &str, error: &io::Error) -> Self {
        let reason = find(error).map_or_else(|| error.to_string(), explain);
        Self::Tls { host: host.to_owned(), reason }
    }

    /// Sorts hyper's error of an exchange.
    pub(super) fn exchange(endpoint: &Endpoint, error: hyper::Error) -> Self {
        // With TLS 1.3 the server verifies the client's certificate after the handshake is over for the client.
        if let Some(tls) = find::<rustls::Error>(&error) {
            return Self::Tls { host: endpoint.host().to_owned(), reason: explain(tls) };
        }

        let address = endpoint.to_string();
        if let Some(&WriteStalled(after)) = find(&error) {
            return Self::WriteTimeout { address, after };
        }
        if error.is_user() || error.is_body_write_aborted() {
            return Self::RequestBody { address, cause: error.into() };
        }
        if error.is_parse() {
            return Self::InvalidResponse { address, cause: error.into() };
        }
        Self::ClosedBeforeResponse { address, cause: error.into() }
    }
}

/// Why the body of a response ended before its end.
#[derive(Debug, thiserror::Error)]
#[error("{}", Chain(.0))]
pub struct ResponseBodyError(#[from] hyper::Error);

/// The first error of this type in the chain of `error`. An `io::Error` is not the source of the error in it.
fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }

    None
}

fn explain(error: &rustls::Error) -> String {
    use rustls::Error as E;

    match error {
        E::InvalidCertificate(certificate) => explain_certificate(certificate),
        E::AlertReceived(
            alert @ (AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate),
        ) => format!("the server refused our client certificate ({alert:?})"),
        E::InvalidMessage(_) => "the server does not speak TLS; is this an http:// address?".to_owned(),
        other => other.to_string(),
    }
}

fn explain_certificate(error: &CertificateError) -> String {
    use CertificateError as E;

    match error {
        E::UnknownIssuer => {
            "the server's certificate is not signed by a trusted certificate authority".to_owned()
        }
        // Issuers are found by name: this is what a cluster that was set up anew looks like.
        E::BadSignature => {
            "the server's certificate is not signed by a trusted certificate authority, but by \
             one of the same name with another key"
                .to_owned()
        }
        E::Expired | E::ExpiredContext { .. } => format!("the server's certificate has expired ({error})"),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            format!("the server's certificate is not valid yet ({error}); is this machine's clock right?")
        }
        E::NotValidForName | E::NotValidForNameContext { .. } => {
            format!("the server's certificate is for another name ({error})")
        }
        // webpki's own word, which rustls passes on in an opaque error: `openssl req -x509` makes such certificates.
        E::Other(error) if error.to_string().contains("CaUsedAsEndEntity") => {
            "the server's certificate is that of a certificate authority (CA:TRUE), which cannot be a server's too: give \
             the server one with basicConstraints=CA:FALSE, or one that the authority has signed"
                .to_owned()
        }
        other => format!("the server's certificate was refused ({other})"),
    }
}

/// An error and its causes in one line. Most errors of hyper are vague without their causes.
pub(super) struct Chain<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }

        Ok(())
    }
}
