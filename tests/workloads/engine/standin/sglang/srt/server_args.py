"""The part of SGLang that lists its flags."""


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--tp-size", type=int)
        parser.add_argument("--flag-of-tomorrow", type=int)
        parser.add_argument("--switch-of-tomorrow", action="store_true")
