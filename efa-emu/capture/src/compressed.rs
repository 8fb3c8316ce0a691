//! Decompresses captures while they are read.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use ruzstd::decoding::StreamingDecoder;

/// A file from its start, whose first bytes were already read to recognise the format.
type Rewound<R> = BufReader<Chain<Cursor<Vec<u8>>, R>>;

/// The bytes of a capture.
pub(super) enum Decompressed<R: Read> {
    Plain(Rewound<R>),
    Gzip(Box<BufReader<MultiGzDecoder<Rewound<R>>>>),
    Zstd(BufReader<Zstd<Rewound<R>>>),
    Lz4(Box<FrameDecoder<Rewound<R>>>),
}

impl<R: Read> Decompressed<R> {
    pub(super) fn new(mut source: R) -> io::Result<Self> {
        let mut start = Vec::new();
        (&mut source).take(4).read_to_end(&mut start)?;
        let magic: Option<[u8; 4]> = start.first_chunk().copied();
        // It fits into the second cache beside the frames that are read from it.
        let whole = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(source));
        Ok(match magic {
            Some([0x1f, 0x8b, ..]) => {
                Decompressed::Gzip(Box::new(BufReader::new(MultiGzDecoder::new(whole))))
            }
            Some([0x28, 0xb5, 0x2f, 0xfd]) => {
                Decompressed::Zstd(BufReader::new(Zstd::Between(whole)))
            }
            Some([0x04, 0x22, 0x4d, 0x18]) => Decompressed::Lz4(Box::new(FrameDecoder::new(whole))),
            _ => Decompressed::Plain(whole),
        })
    }

    pub(super) fn buffered(&mut self) -> &mut dyn BufRead {
        match self {
            Decompressed::Plain(source) => source,
            Decompressed::Gzip(source) => source,
            Decompressed::Zstd(source) => source,
            Decompressed::Lz4(source) => source,
        }
    }
}

/// Consecutive Zstandard frames.
pub(super) enum Zstd<R: Read> {
    /// Before a frame, or at the end.
    Between(R),
    Inside(Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>),
    /// The start of a frame was invalid.
    Broken,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Zstd::Broken) {
                Zstd::Between(mut source) => {
                    if source.fill_buf()?.is_empty() {
                        *self = Zstd::Between(source);
                        return Ok(0);
                    }
                    let decoder = StreamingDecoder::new(source).map_err(io::Error::other)?;
                    *self = Zstd::Inside(Box::new(decoder));
                }
                Zstd::Inside(mut decoder) => match decoder.read(buffer) {
                    Ok(0) if !buffer.is_empty() => *self = Zstd::Between(decoder.into_inner()),
                    read => {
                        *self = Zstd::Inside(decoder);
                        return read;
                    }
                },
                Zstd::Broken => return Ok(0),
            }
        }
    }
}
