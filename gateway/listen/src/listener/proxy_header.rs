//! The header of the PROXY protocol, version 2: the address of the client, written by a proxy at the start of a connection.
//!
//! The format is that of HAProxy's `doc/proxy-protocol.txt`, section 2.2. The libraries for it neither limit the length before
//! they wait for it, nor verify the checksum, and accept connections that are not TCP.

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::addresses::canonical;

/// The first bytes of each header. No other protocol begins like this.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The first bytes of a header of version 1.
const VERSION_1: &[u8] = b"PROXY ";
/// The length of the signature, the command, the family and the length.
const FIXED_LENGTH: usize = 16;
/// The longest accepted header, in bytes.
pub const MAX_LENGTH: usize = 2048;

/// The nibble of the version.
const VERSION: u8 = 2;
const COMMAND_LOCAL: u8 = 0;
const COMMAND_PROXY: u8 = 1;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
/// The type of the field with the checksum.
const TYPE_CRC32C: u8 = 3;

/// The client of a connection, as its proxy reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The proxy itself opened the connection, for example as a health check.
    Local,
    /// The proxy forwards the connection of a client.
    Forwarded {
        /// The address of the client.
        client: SocketAddr,
    },
}

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The header is incomplete. It has at least `length` bytes, which are more than there are.
    Incomplete {
        /// The number of bytes after which to parse again.
        length: usize,
    },
    /// The header is complete.
    Complete {
        /// The client.
        header: ProxyHeader,
        /// The number of bytes of the header.
        length: usize,
    },
}

/// The error of a connection that does not begin with a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// The first bytes are those of another protocol.
    #[error(
        "the connection does not begin with a PROXY header: enable version 2 of the PROXY protocol in the load balancer"
    )]
    Missing,
    /// The header has version 1.
    #[error("the PROXY header has version 1: configure version 2 in the load balancer")]
    Version1,
    /// The connection ended before the end of the header.
    #[error("the connection ended within the PROXY header")]
    Truncated,
    /// The version is neither 1 nor 2.
    #[error("the PROXY header has version {0}, which does not exist")]
    UnknownVersion(u8),
    /// The command is neither LOCAL nor PROXY.
    #[error("the PROXY header has the unknown command {0}")]
    UnknownCommand(u8),
    /// The header is longer than [`MAX_LENGTH`].
    #[error("the PROXY header has {0} bytes, and the limit is {MAX_LENGTH}")]
    TooLong(usize),
    /// The forwarded connection is not TCP over IPv4 or IPv6.
    #[error("the PROXY header is not of a TCP connection: family and protocol are {0:#04x}")]
    NotTcp(u8),
    /// A part of the header is longer than the header, or the checksum occurs twice.
    #[error("the PROXY header is malformed")]
    Malformed,
    /// The CRC32C of the header is wrong.
    #[error("the checksum of the PROXY header is wrong")]
    Checksum,
}

/// Parses the first bytes of a connection. The bytes after the header are not read.
///
/// # Errors
///
/// The bytes are not the beginning of a valid header.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyHeaderError> {
    let compared = bytes.len().min(SIGNATURE.len());
    if bytes[..compared] != SIGNATURE[..compared] {
        let is_version_1 = bytes.starts_with(VERSION_1);
        return Err(if is_version_1 { ProxyHeaderError::Version1 } else { ProxyHeaderError::Missing });
    }
    let Some((&[.., command, family, high, low], rest)) = bytes.split_first_chunk::<FIXED_LENGTH>() else {
        return Ok(Parsed::Incomplete { length: FIXED_LENGTH });
    };
    let (version, command) = (command >> 4, command & 15);
    if version != VERSION {
        return Err(ProxyHeaderError::UnknownVersion(version));
    }
    if command > COMMAND_PROXY {
        return Err(ProxyHeaderError::UnknownCommand(command));
    }
    let length = FIXED_LENGTH + usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_LENGTH {
        return Err(ProxyHeaderError::TooLong(length));
    }
    let Some(rest) = rest.get(..length - FIXED_LENGTH) else { return Ok(Parsed::Incomplete { length }) };
    let (header, fields, checksum) = if command == COMMAND_LOCAL {
        // The family and the rest of the header are to be ignored. A checksum is verified if it can be found.
        let fields = rest.get(addresses_length(family)..).unwrap_or_default();
        (ProxyHeader::Local, fields, checksum_position(fields).unwrap_or(None))
    } else {
        let (client, fields) = client(family, rest)?;
        (ProxyHeader::Forwarded { client: canonical(client) }, fields, checksum_position(fields)?)
    };
    if let Some(position) = checksum {
        verify(&bytes[..length], length - fields.len() + position)?;
    }
    Ok(Parsed::Complete { header, length })
}

/// Reads the header of a connection, and no byte after it. Returns `None` if the connection ended before its first byte, as
/// health checks of load balancers do.
///
/// # Errors
///
/// The connection does not begin with a valid header, or ended within it.
pub async fn read<T>(io: &mut T) -> Result<Option<ProxyHeader>, ProxyHeaderError>
where
    T: AsyncRead + Unpin,
{
    let mut bytes = Vec::with_capacity(FIXED_LENGTH);
    loop {
        let missing = match parse(&bytes)? {
            Parsed::Complete { header, .. } => return Ok(Some(header)),
            Parsed::Incomplete { length } => length - bytes.len(),
        };
        match io.take(missing as u64).read_buf(&mut bytes).await {
            Ok(read) if read > 0 => {}
            Ok(_) | Err(_) if bytes.is_empty() => return Ok(None),
            Ok(_) | Err(_) => return Err(ProxyHeaderError::Truncated),
        }
    }
}

/// Returns the address of the client, and the fields after the addresses.
fn client(family: u8, rest: &[u8]) -> Result<(SocketAddr, &[u8]), ProxyHeaderError> {
    let (addresses, fields) =
        rest.split_at_checked(addresses_length(family)).ok_or(ProxyHeaderError::Malformed)?;
    let (address, ports) = match family {
        TCP_OVER_IPV4 => {
            let (&source, rest) = addresses.split_first_chunk::<4>().ok_or(ProxyHeaderError::Malformed)?;
            (IpAddr::from(source), &rest[4..])
        }
        TCP_OVER_IPV6 => {
            let (&source, rest) = addresses.split_first_chunk::<16>().ok_or(ProxyHeaderError::Malformed)?;
            (IpAddr::from(source), &rest[16..])
        }
        // For an unknown client the address of the proxy would be used, whose `X-Forwarded-For` is trusted: the client could
        // choose its address.
        _ => return Err(ProxyHeaderError::NotTcp(family)),
    };
    let port = u16::from_be_bytes([ports[0], ports[1]]);
    Ok((SocketAddr::new(address, port), fields))
}

/// Returns the length of both addresses and ports of a family.
fn addresses_length(family: u8) -> usize {
    match family >> 4 {
        1 => 12,
        2 => 36,
        3 => 216,
        _ => 0,
    }
}

/// Returns the position of the checksum in the fields of a header, if there is one.
fn checksum_position(fields: &[u8]) -> Result<Option<usize>, ProxyHeaderError> {
    let (mut rest, mut checksum) = (fields, None);
    while let Some((&[kind, high, low], after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let after_value = after.get(length..).ok_or(ProxyHeaderError::Malformed)?;
        if kind == TYPE_CRC32C {
            if length != 4 || checksum.is_some() {
                return Err(ProxyHeaderError::Malformed);
            }
            checksum = Some(fields.len() - after.len());
        }
        rest = after_value;
    }
    if rest.is_empty() { Ok(checksum) } else { Err(ProxyHeaderError::Malformed) }
}

/// Verifies the checksum at a position of a header. It is that of the header with four zeros in its place.
fn verify(header: &[u8], at: usize) -> Result<(), ProxyHeaderError> {
    let (before, after) = (&header[..at], &header[at + 4..]);
    let computed = crc32c(before.iter().chain(&[0; 4]).chain(after));
    let matches = header[at..at + 4] == computed.to_be_bytes();
    matches.then_some(()).ok_or(ProxyHeaderError::Checksum)
}

/// Returns the CRC32C (Castagnoli) of some bytes.
fn crc32c<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let divide = |crc: u32, _| (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
    !bytes.fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), divide))
}

#[cfg(test)]
mod tests;
