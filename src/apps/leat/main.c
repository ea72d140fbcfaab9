/* SPDX-License-Identifier: Apache-2.0 */
/* main.c of `leat`: the table of commands, and which one is meant. */
#include "apps/leat/cli.h"

#include "apps/leat/remote.h"

static const struct cli_option preload_options[] = {
    {'n', "name", "NAME", "the set's name; required (a set without a name would go with this command)"},
    {300, "pool", "SIZE", "at most this much pool for it, as 4G; the rest is streamed"},
    {301, "public", NULL, "other users of a system daemon may read it"},
    {302, "wait", NULL, "return when every sample is in the pool (the default)"},
    {303, "no-wait", NULL, "return once the index is complete; loading continues in the daemon"},
    {0},
};
static const struct cli_option index_options[] = {
    {304, "no-cache", NULL,
     "fail, rather than use your cache, when the folder of the data cannot be written"},
    REMOTE_OPTIONS,
    {0},
};
static const struct cli_option convert_options[] = {
    {340, "to", "FORMAT", "dir, tar or npy (default: by the destination's name)"},
    {341, "shard-size", "SIZE", "most bytes of a tar shard (default: 1GiB)"},
    {342, "shard-count", "N", "so many tar shards, of equally many samples"},
    {343, "field", "EXT", "only files with this extension"},
    {344, "labels", NULL, "add KEY.cls with the number of the class (the first folder's) to each sample"},
    {345, "force", NULL, "replace the destination"},
    {0},
};
static const struct cli_option ls_options[] = {
    {'l', "long", NULL, "sizes as well, and for sets what is in the pool"},
    {305, "limit", "N", "at most this many keys"},
    {'r', "recursive", NULL, "of s3://...: all below it, not one level"},
    REMOTE_OPTIONS,
    {0},
};
static const struct cli_option cp_options[] = {
    {'r', "recursive", NULL, "a folder, or all below a prefix"},
    {370, "update", NULL, "leave alone what is the same: size, and time or ETag"},
    REMOTE_OPTIONS,
    {0},
};
static const struct cli_option cat_options[] = {
    {306, "field", "FIELD", "this field of the sample; needed where there are several"},
    {307, "index", NULL, "take the second argument as a number even if a key is spelled like it"},
    {'f', "force", NULL, "write binary to a terminal too"},
    {0},
};
static const struct cli_option drop_options[] = {
    {'f', "force", NULL, "do not wait for readers: they get \"stale\""},
    {0},
};
static const struct cli_option verify_options[] = {
    {308, "source", NULL, "read the source again as well, not only the pool"},
    {0},
};
static const struct cli_option status_options[] = {
    {309, "metrics", NULL, "the daemon's metrics, Prometheus text"},
    {0},
};
static const struct cli_option top_options[] = {
    {380, "interval", "SECONDS", "time between two pictures (default: 2)"},
    {381, "once", NULL, "show one picture and end"},
    {0},
};
static const struct cli_option stop_options[] = {
    {'f', "force", NULL, "even while others use it: they get \"peer gone\""},
    {0},
};
static const struct cli_option doctor_options[] = {
    {300, "pool", "SIZE", "judge the limits against this pool (default: half of the available memory)"},
    {310, "no-measure", NULL, "skip the measurements (about a second)"},
    {311, "strict", NULL, "exit 1 for warnings too"},
    {0},
};
static const struct cli_option replay_options[] = {
    {330, "state", "FILE", "JSON of Loader.state_dict(); - for standard input; required"},
    {331, "step", "N", "which step of the epoch, from 0; required"},
    {332, "rank", "R", "that rank's part; without: all of the step"},
    {333, "world-size", "N", "number of ranks, for a state without it (version 1)"},
    {334, "epoch", "N", "of this epoch; without: the state's"},
    {0},
};
static const struct cli_option topo_options[] = {
    {320, "root", "DIR", "show a recorded tree (a folder, or one file) instead of this host"},
    {321, "gpu", "N", "what a process that uses this GPU would get; none: one that uses none"},
    {322, "cpus", "LIST", "what a process confined to these cores would get, as 0-3,8"},
    {323, "rails", "NAMES", "these NICs in this order, as mlx5_0:1,eth2 (default: LEAT_RAILS)"},
    {324, "record", "FILE", "write what is read of /sys to a new tar archive"},
    {'a', "all", NULL, "virtual interfaces too"},
    {0},
};

const struct cli_command cli_commands[] = {
    {"preload", "load a dataset into the pool under a name, and keep it there",
     "URI --name NAME [OPTION ...]\n"
     "       leat preload FIELD=PATH [FIELD=PATH ...] --name NAME [OPTION ...]",
     "URI is a folder, a .npy or HDF5 file, a .tar file or a pattern of them. A daemon is started\n"
     "for this job if none runs.",
     preload_options,
     "leat preload train/ --name train\n"
     "leat preload 'shards/train-{000..146}.tar' --name imagenet --pool 200G\n"
     "leat preload image=images.npy label=labels.npy --name digits --json",
     cmd_preload, 1, CLI_ANY, "give the dataset: a path, a URI, or FIELD=PATH"},
    {"append", "add the samples of a dataset to a set, as a new version",
     "NAME URI [OPTION ...]\n"
     "       leat append NAME FIELD=PATH [FIELD=PATH ...] [OPTION ...]",
     "Processes that have the set open keep reading the version that they opened.", NULL,
     "leat append imagenet more-shards/", cmd_append, 2, CLI_ANY,
     "give the set's name, then the dataset to add"},
    {"index", "scan a dataset once and keep its index beside it",
     "URI [OPTION ...]\n"
     "       leat index FIELD=PATH [FIELD=PATH ...] [OPTION ...]",
     "No daemon is needed. Later preloads read the index instead of every header.", index_options,
     "leat index /data/imagenet/\n"
     "leat index '/data/shards/train-{000..146}.tar' --json\n"
     "leat index s3://bucket/imagenet/train",
     cmd_index, 1, CLI_ANY, "give the dataset: a path, a URI, or FIELD=PATH"},
    {"convert", "turn a folder, tar shards and arrays into each other",
     "SRC DST [OPTION ...]\n"
     "       leat convert FIELD=PATH [FIELD=PATH ...] DST [OPTION ...]",
     "DST is there when all of it is written, not before. The same source gives the same bytes.\n"
     "No daemon is needed.",
     convert_options,
     "leat convert /data/imagenet/train /data/shards --shard-size 512MiB --labels\n"
     "leat convert '/data/shards/shard-{000000..000009}.tar' /data/files\n"
     "leat convert images.npy images.tar",
     cmd_convert, 2, CLI_ANY, "give what to convert, and where to"},
    {"cp", "copy files and folders from and to S3, and files from web servers",
     "[-r] SRC ... DST [OPTION ...]",
     "One of SRC and DST is s3://BUCKET/KEY; SRC may be http(s)://... too. Several objects at a time;\n"
     "a file takes its name when all of it is there. DST may be -, standard output. No daemon is needed.",
     cp_options,
     "leat cp s3://bucket/shards/a.tar /data/\n"
     "leat cp -r --update /data/imagenet s3://bucket/imagenet\n"
     "leat cp -r s3://bucket/imagenet /data/imagenet --endpoint-url http://127.0.0.1:9000\n"
     "leat cp https://example.org/images.npy images.npy\n"
     "leat cp s3://bucket/shards/a.tar - | tar -t",
     cmd_cp, 2, CLI_ANY, "give what to copy, and where to"},
    {"ls", "list the sets of the pool, the keys of one, or objects of S3",
     "[-l] [NAME [PREFIX]] [OPTION ...]\n"
     "       leat ls [-l] [-r] s3://BUCKET[/PREFIX] [OPTION ...]",
     "With NAME: its keys that begin with PREFIX, in order of the sample number. Of S3: one level, and\n"
     "no daemon is needed.",
     ls_options,
     "leat ls -l\n"
     "leat ls pets cat/\n"
     "leat ls pets --json --limit 10\n"
     "leat ls -lr s3://bucket/imagenet/",
     cmd_ls, 0, 2, "a name and a prefix at most"},
    {"stat", "show all about one set", "NAME|URI [OPTION ...]",
     "Fields, sizes, how much of it is in the pool, and how this host reads it. Loads nothing.", NULL,
     "leat stat imagenet\n"
     "leat stat /data/imagenet/ --json",
     cmd_stat, 1, 1, "give one set's name or URI"},
    {"cat", "write one sample to standard output", "NAME KEY|INDEX [OPTION ...]",
     "Raw bytes, as read by a training process. An index below 0 counts from the end; put -- before\nit. "
     "With --json: a document with the bytes in base64.",
     cat_options,
     "leat cat pets cat/1.jpg > 1.jpg\n"
     "leat cat digits 17 --field label | od -An -tu4\n"
     "leat cat digits -f -- -1",
     cmd_cat, 2, 2, "give a set's name, then a key or an index"},
    {"drop", "free a set's memory", "NAME [OPTION ...]",
     "Waits for its readers, 30 s unless --timeout says otherwise.", drop_options,
     "leat drop imagenet\n"
     "leat drop imagenet --timeout 5m",
     cmd_drop, 1, 1, "give one set's name"},
    {"verify", "compute every checksum of a set again", "NAME [OPTION ...]",
     "The first bad key is named, and the exit code is 7. Samples that failed to load, or are lost, are bad.",
     verify_options, "leat verify imagenet --source", cmd_verify, 1, 1, "give one set's name"},
    {"replay", "show which samples stood in a past batch", "--state FILE --step N [OPTION ...] [SET ...]",
     "One line a sample: position in the epoch, number, and, when the set is given, its key.\n"
     "No daemon is needed without a set.",
     replay_options,
     "leat replay --state state.json --step 1200\n"
     "leat replay --state state.json --step 1200 --rank 3 --world-size 8 imagenet",
     cmd_replay, 0, CLI_ANY, NULL},
    {"status", "show the daemon: pool, sets, jobs, clients, nodes", "[OPTION ...]",
     "With exit code 3: no daemon runs.", status_options,
     "leat status\n"
     "leat status --json\n"
     "leat status --metrics | grep pool",
     cmd_status},
    {"top", "watch the pool, its sets, and the jobs that read them", "[OPTION ...]",
     "Until Ctrl-C. Where the output is no terminal, one picture after another.", top_options,
     "leat top\n"
     "leat top --once\n"
     "leat top --json --interval 10 >> training.jsonl",
     cmd_top},
    {"stop", "end the daemon of this job", "[OPTION ...]", "No daemon is no error.", stop_options,
     "leat stop", cmd_stop},
    {"doctor", "name what this host lacks, what it costs and how to repair it", "[PATH] [OPTION ...]",
     "With PATH, also how the files there can be read.", doctor_options,
     "leat doctor\n"
     "leat doctor /data/imagenet\n"
     "leat doctor --pool 400G --json",
     cmd_doctor, 0, 1, "one path at most"},
    {"topo", "show NICs, GPUs, how far apart they are, and which are used", "[OPTION ...]",
     "No daemon is needed.", topo_options,
     "leat topo\n"
     "leat topo --gpu 3 --json\n"
     "leat topo --record $(hostname).tar\n"
     "leat topo --root unpacked/ --cpus 64-95",
     cmd_topo},
    {"serve", "serve objects on disks of this host to S3 tools",
     "[--store DIR]... [--listen ADDR]... [OPTION ...]",
     "Runs until Ctrl-C. Without options: objects below ~/.local/share/leat, keys in ~/.config/leat/keys\n"
     "(made if missing), on 127.0.0.1:9000. No daemon is needed.",
     serve_options,
     "leat serve\n"
     "leat serve --store /data/a --store /data/b --keys /etc/leat/keys --listen 0.0.0.0:9000",
     cmd_serve},
    {"bucket", "make a bucket of leat serve, also as a cache of a remote one",
     "create NAME [--remote URL] [OPTION ...]",
     "With --remote, what is read from the bucket is fetched from URL once and kept, and what is written "
     "goes\n"
     "there as well. URL is s3://BUCKET/PREFIX or file:///FOLDER; the remote's keys are those that the "
     "server\n"
     "finds (see --remote-profile), and stand on no command line. No daemon is needed.",
     bucket_options,
     "leat bucket create photos --endpoint-url http://127.0.0.1:9000\n"
     "leat bucket create train --remote s3://big-bucket/imagenet --remote-profile training\n"
     "leat bucket create scratch --remote file:///mnt/nfs/scratch --mode back --check age --check-age 300",
     cmd_bucket, 2, 2, "create, and the new bucket's name"},
    {"scrub", "show how far a server's disks are read again, or have it done now",
     "[--now | --stop] [OPTION ...]",
     "A server reads all of its objects again by itself, in the background. Damaged ones are named, and the\n"
     "exit code is 7. Processes of the same host may look; --now needs a token, or the server's unix socket.",
     scrub_options,
     "leat scrub --endpoint-url unix:/run/leat/http.sock\n"
     "leat scrub --now --endpoint-url https://store1:9000 --token ~/.config/leat/admin-token",
     cmd_scrub},
    {"help", "show help on a command", "[COMMAND]", NULL, NULL, "leat help preload", cmd_help, 0, 1,
     "one command at a time"},
    {0},
};

const struct cli_command *cli_command_find(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        if (strcmp(c->name, name) == 0)
            return c;
    }
    return NULL;
}

int cli_connect(struct cli *cli, unsigned flags, struct leat_client **ret_client)
{
    struct leat_client_options options = {
        .size = sizeof(options),
        .socket = cli->socket,
        .job = cli->job,
        .timeout_ns = cli->timeout_ns,
        .flags = flags,
    };
    return leat_connect(&options, ret_client, &cli->err);
}

static int unknown_command(const struct cli *cli, const char *name)
{
    const char *names[32];
    size_t n = 0;
    for (const struct cli_command *c = cli_commands; c->name; c++)
        names[n++] = c->name;
    const char *near = cli_nearest(name, names, n);
    if (near)
        return cli_usage_error(cli, "unknown command %s (did you mean %s?)", name, near);
    return cli_usage_error(cli, "unknown command %s", name);
}

int cmd_help(struct cli *cli)
{
    const char *name = cli->noperands ? cli->operands[0] : NULL;
    const struct cli_command *command = name ? cli_command_find(name) : NULL;
    if (name && !command)
        return unknown_command(cli, name);
    cli_help(stdout, command);
    return CLI_OK;
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    if (argc == 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)) {
        printf("leat %s\n", leat_version());
        return cli_finish(&cli, CLI_OK);
    }
    int rc = cli_parse(&cli, argc, argv);
    free(cli.given);
    if (rc == 0 && cli.noperands == 0) {
        cli_help(stderr, NULL);
        return CLI_USAGE;
    }
    if (rc == 0 && !(cli.command = cli_command_find(cli.operands[0])))
        return unknown_command(&cli, cli.operands[0]);
    if (rc == 0) {
        rc = cli_parse(&cli, cli.noperands, cli.operands);
        rc = rc == 0 ? cli.command->run(&cli) : rc;
        free(cli.given);
    }
    return cli_finish(&cli, rc == -2 ? CLI_OK : rc < 0 ? CLI_USAGE : rc);
}
