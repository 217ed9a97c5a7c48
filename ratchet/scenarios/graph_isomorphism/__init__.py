"""Graph isomorphism: are two graphs the same up to relabelling?"""
