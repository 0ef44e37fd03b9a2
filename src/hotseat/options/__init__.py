"""Read options: a field of a configuration dataclass is a flag, a variable, a YAML key and a keyword of ``LLM``.

    field             max_num_seqs: int = field(default=64, metadata={"help": "seats"})
    flag              --max-num-seqs 32  (or --max_num_seqs; booleans: --x and --no-x; sequences: repeated)
    environment       HOTSEAT_MAX_NUM_SEQS=32  (sequences: separated by commas)
    file              max-num-seqs: 32  (or max_num_seqs)
    Python            LLM(max_num_seqs=32)

Must not know: where the command line and the environment come from; both are handed in.
"""

from hotseat.options.option import ENVIRONMENT_PREFIX, Option, build, collect
from hotseat.options.sources import from_environment, from_file, from_keywords, misspelt_variables, unknown_option

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Option",
    "build",
    "collect",
    "from_environment",
    "from_file",
    "from_keywords",
    "misspelt_variables",
    "unknown_option",
]
