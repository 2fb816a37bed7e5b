//! gRPC with small buffers: most streams wait for a request, and hold no more memory than their messages need.

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    codec::{BufferSettings, Codec, CompressionEncoding},
    server::Grpc,
};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// The initial size of a buffer in bytes, and the size from which it is written.
const BUFFER: (usize, usize) = (512, 64 << 10);

/// Encodes responses of type `T` and decodes requests of type `U`.
pub(super) struct SmallCodec<T, U>(PhantomData<(T, U)>);

/// Returns the server of one call. Messages of agentk are compressed; those of kas are not, as a choice of kas: a CPU is more expensive
/// here than the network.
pub(super) fn grpc<T, U>(max_message: usize) -> Grpc<SmallCodec<T, U>>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    Grpc::new(SmallCodec(PhantomData))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(max_message)
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::new(BUFFER.0, BUFFER.1))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(BufferSettings::new(BUFFER.0, BUFFER.1))
    }
}
