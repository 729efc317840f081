"""The tensors of a file: what each of them is, and the way into and out of a program."""
