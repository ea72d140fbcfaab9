#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loaders over a folder of files, each library in the form that its documentation shows, on the same samples: rival_read.py [serve.py's options] --how HOW.

--file is a folder of files as bench/make_data made it; --store where a library's own form of it lies (made by rival_read.py ... --make first). --workers
is what a library may have beside the process that iterates. HOW: leat (--rest SOCKET), dataloader, webdataset, streaming, litdata, spdl. The first `epoch` opens
the data; its first_ns is from before that to the first batch in hand.
"""
import glob
import logging
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import serve  # noqa: E402

args = serve.arguments("how", "store", "make")
SHARD = 32 << 20


def paths():
    return sorted(glob.glob(os.path.join(args.file, "*", "*.bin")))


def read(path):
    with open(path, "rb") as f:
        return f.read()


def as_list(samples):
    return samples


def loader_of(dataset, **more):
    from torch.utils.data import DataLoader
    return DataLoader(dataset, num_workers=args.workers, persistent_workers=args.workers > 0, **more)


class Reader:
    """make() writes the library's form of the data, open() returns it; begin(data, number) -> batches."""

    data = None

    def make(self):
        pass

    def epoch(self, number):
        if self.data is None:
            self.data = self.open()
        return self.begin(self.data, number)

    def begin(self, data, number):
        return data

    def samples(self, batch):
        return batch

    def count(self, batch):
        return len(batch)


class Leat(Reader):
    def open(self):
        ws = leat.open(args.file, socket=args.rest[0])
        return leat.Loader(ws, args.batch, seed=20, shuffle="full", rank=0, world_size=1)

    def begin(self, data, number):
        data.set_epoch(number)
        return (batch[batch.fields[0]] for batch in data)


class Files:
    def __init__(self):
        self.paths = paths()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return read(self.paths[i])


class Loaded(Reader):
    """A folder, as ImageFolder reads it: open and read, a file at a time, in the workers."""

    def open(self):
        return loader_of(Files(), batch_size=args.batch, shuffle=True, collate_fn=as_list)


class Tars(Reader):
    def make(self):
        import webdataset as wds
        with wds.ShardWriter(os.path.join(args.store, "%06d.tar"), maxsize=SHARD, verbose=0) as sink:
            for i, path in enumerate(paths()):
                sink.write({"__key__": f"{i:06d}", "bin": read(path)})

    def open(self):
        import webdataset as wds
        shards = sorted(glob.glob(os.path.join(args.store, "*.tar")))
        data = wds.WebDataset(shards, shardshuffle=len(shards), seed=20).shuffle(1000).to_tuple("bin").batched(args.batch, collation_fn=as_list)
        return wds.WebLoader(data, batch_size=None, num_workers=args.workers, persistent_workers=args.workers > 0)

    def samples(self, batch):
        return [one[0] for one in batch]


class Streams(Reader):
    def make(self):
        from streaming import MDSWriter
        with MDSWriter(out=args.store, columns={"data": "bytes"}, size_limit=SHARD) as sink:
            for path in paths():
                sink.write({"data": read(path)})

    def open(self):
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory
        clean_stale_shared_memory()
        return loader_of(StreamingDataset(local=args.store, shuffle=True, shuffle_seed=20, batch_size=args.batch), batch_size=args.batch,
                         collate_fn=as_list)

    def samples(self, batch):
        return [one["data"] for one in batch]


class Lit(Reader):
    def make(self):
        import litdata
        litdata.optimize(fn=read, inputs=paths(), output_dir=args.store, chunk_bytes=SHARD, num_workers=1)

    def open(self):
        import litdata
        return litdata.StreamingDataLoader(litdata.StreamingDataset(args.store, shuffle=True), batch_size=args.batch, num_workers=args.workers,
                                           persistent_workers=args.workers > 0, collate_fn=as_list)


class Spdl(Reader):
    """Threads that read files, as its documentation begins."""

    def open(self):
        return paths()

    def begin(self, data, number):
        from spdl.pipeline import PipelineBuilder
        order = list(data)
        random.Random(number).shuffle(order)
        threads = max(1, 2 * args.workers)
        pipeline = PipelineBuilder().add_source(order).pipe(read, concurrency=threads).aggregate(args.batch).add_sink(4).build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)


class Pictures(Reader):
    """JPEGs to crops of 224, flipped at random, normalised, float32 CHW."""

    def open(self):
        ws = leat.open(args.file, socket=args.rest[0])
        return leat.Loader(ws, args.batch, seed=20, shuffle="full", rank=0, world_size=1, num_workers=args.workers, prefetch=4,
                           fields=[ws.fields[0].name], transform=leat.prep.RandomResizedCrop(224))

    def begin(self, data, number):
        data.set_epoch(number)
        return (batch[batch.fields[0]] for batch in data)


class Folder:
    """As torchvision's ImageFolder, whose transforms run by Pillow."""

    def __init__(self):
        from torchvision import transforms as t
        self.paths = sorted(glob.glob(os.path.join(args.file, "*", "*.jpg")))
        self.transform = t.Compose([t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(),
                                    t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        from PIL import Image
        with Image.open(self.paths[i]) as picture:
            return self.transform(picture.convert("RGB"))


class FolderLoaded(Reader):
    def open(self):
        return loader_of(Folder(), batch_size=args.batch, shuffle=True)


class SpdlPictures(Reader):
    """Whole pictures scaled to 224 x 224, uint8 HWC: no crop, no flip, no normalisation."""

    def open(self):
        return sorted(glob.glob(os.path.join(args.file, "*", "*.jpg")))

    def begin(self, data, number):
        import spdl.io
        from spdl.pipeline import PipelineBuilder
        order = list(data)
        random.Random(number).shuffle(order)
        threads = max(1, args.workers)

        def decoded(batch):
            return spdl.io.to_numpy(spdl.io.load_image_batch(batch, width=224, height=224, pix_fmt="rgb24"))

        pipeline = PipelineBuilder().add_source(order).aggregate(args.batch).pipe(decoded, concurrency=threads).add_sink(4).build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)


HOWS = {"leat-jpeg": Pictures, "dataloader-jpeg": FolderLoaded, "spdl-jpeg": SpdlPictures, "leat": Leat, "dataloader": Loaded, "webdataset": Tars, "streaming": Streams, "litdata": Lit, "spdl": Spdl}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    reader = HOWS[args.how]()
    if args.make:
        os.makedirs(args.store)
        reader.make()
        sys.exit()
    if args.how.startswith("leat"):
        sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"), os.path.join(args.build, "python")]
        import leat
        import leat.prep
    elif args.how in ("webdataset", "streaming", "litdata"):
        __import__(args.how)
        import torch.utils.data  # noqa: F401
    elif args.how.startswith("dataloader"):
        import torch
        import torch.utils.data  # noqa: F401
        torch.set_num_threads(1)  # as torch sets it in workers: the CPUs are shared
    serve.serve(args, reader)
