//! The codec of every gRPC service of the contract: prost's, with a limit on the memory that a
//! decoded request takes.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use crate::{
    Failure,
    allocation::{self, Allocates, Budget},
    reason,
};

/// Decodes requests within their allocation limit, and answers without one.
#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Allocates + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstDecoder::default())
    }
}

#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Allocates + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let Some(most) = U::BYTES_MAX.filter(|_| buf.remaining() > allocation::FREE_BYTES) else {
            return self.0.decode(buf);
        };
        // tonic buffers a message in one piece.
        if allocation::check::<U>(buf.chunk(), &Budget::new(most)).is_ok() {
            return self.0.decode(buf);
        }
        let reduced = U::reduced(buf.chunk()).and_then(|reduced| U::decode(&reduced[..]).ok());
        match reduced {
            Some(message) => {
                buf.advance(buf.remaining());
                Ok(Some(message))
            }
            None => Err(too_large(most).into()),
        }
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// The refusal of a message that is small on the wire and large in memory.
pub fn too_large(most: usize) -> Failure {
    Failure::new(&reason::CONTENT_TOO_LARGE).because(format!(
        "the message has so many small elements that it would take more than {} MiB of memory: \
         send fewer, or a URL instead of the content",
        most / (1024 * 1024)
    ))
}
