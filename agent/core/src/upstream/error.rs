//! The errors of a request without a response, classified by remedy.

use std::{error::Error as StdError, io, time::Duration};

use proto::ErrorChain;
use rustls::{AlertDescription, CertificateError};

use super::{ServerUrl, stream::WriteTimeoutError};

type Cause = Box<dyn StdError + Send + Sync>;

/// The error of a request without a response.
///
/// It displays as one line with the address, without credentials. The line includes the cause, so that `source()` does not
/// return it again.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The name does not exist, or DNS is down.
    #[error("cannot resolve {host}: {cause}")]
    Resolve {
        /// The host.
        host: String,
        /// The error below.
        cause: io::Error,
    },
    /// Nothing listens there, or a network policy forbids the connection.
    #[error("cannot connect to {address}: {cause}")]
    Connect {
        /// The address, without credentials.
        address: String,
        /// The error below.
        cause: io::Error,
    },
    /// The TLS handshake failed.
    #[error("TLS with {host} failed: {reason}")]
    Tls {
        /// The host.
        host: String,
        /// The reason, in words.
        reason: String,
    },
    /// The certificates of agentk are not available.
    #[error("cannot prepare TLS for {host}: {}", ErrorChain(&**cause))]
    TlsSetup {
        /// The host.
        host: String,
        /// The error below.
        cause: Cause,
    },
    /// The connection was not open in time.
    #[error("no connection to {address} within {after:?}")]
    ConnectTimeout {
        /// The address, without credentials.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The head of the response did not arrive in time.
    #[error("no response from {address} within {after:?}")]
    ResponseTimeout {
        /// The address, without credentials.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The server has stopped reading the request.
    #[error("{address} took no bytes of the request for {after:?}")]
    WriteTimeout {
        /// The address, without credentials.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The server may have acted on the request.
    #[error("{address} closed the connection before its response: {}", ErrorChain(&**cause))]
    ClosedBeforeResponse {
        /// The address, without credentials.
        address: String,
        /// The error below.
        cause: Cause,
    },
    /// The response violates HTTP/1.1.
    #[error("{address} sent something that is not a valid HTTP/1.1 response: {}", ErrorChain(&**cause))]
    InvalidResponse {
        /// The address, without credentials.
        address: String,
        /// The error below.
        cause: Cause,
    },
    /// The body of the request failed on the side of the caller.
    #[error("the body of the request to {address} broke off: {}", ErrorChain(&**cause))]
    RequestBody {
        /// The address, without credentials.
        address: String,
        /// The error below.
        cause: Cause,
    },
    /// The method or the path of the request is invalid.
    #[error("the path cannot be sent to {address}: {}", ErrorChain(&**cause))]
    InvalidTarget {
        /// The address, without credentials.
        address: String,
        /// The error below.
        cause: Cause,
    },
}

impl UpstreamError {
    /// Returns the error of a TLS handshake.
    pub fn handshake(host: &str, error: &io::Error) -> Self {
        let reason = find(error).map_or_else(|| error.to_string(), explain);
        Self::Tls { host: host.to_owned(), reason }
    }

    /// Classifies hyper's error of an exchange.
    pub(super) fn exchange(url: &ServerUrl, error: hyper::Error) -> Self {
        // With TLS 1.3 the server verifies the client's certificate after the handshake is over for the client.
        if let Some(tls) = find::<rustls::Error>(&error) {
            return Self::Tls { host: url.host().to_owned(), reason: explain(tls) };
        }

        let address = url.to_string();
        if let Some(&WriteTimeoutError(after)) = find(&error) {
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

/// The error of a response body that failed before its end.
#[derive(Debug, thiserror::Error)]
#[error("{}", ErrorChain(.0))]
pub struct ResponseBodyError(#[from] hyper::Error);

/// Returns the first error of this type in the chain of `error`. The chain includes the errors that an `io::Error` wraps and
/// that its `source()` skips.
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
        ) => format!("the server refused agentk's client certificate ({alert:?})"),
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
        // Issuers are looked up by name. A cluster that was created anew has an authority of the same name with another key.
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
        // webpki's error, which rustls wraps in an opaque one: `openssl req -x509` creates such certificates.
        E::Other(error) if error.to_string().contains("CaUsedAsEndEntity") => {
            "the server's certificate is that of a certificate authority (CA:TRUE), which no server may use: give \
             the server one with basicConstraints=CA:FALSE, or one that the authority has signed"
                .to_owned()
        }
        other => format!("the server's certificate was refused ({other})"),
    }
}
