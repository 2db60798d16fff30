import torch

from asrl.models.projector import Projector


def test_two_frames_are_joined_in_order_and_an_odd_last_one_is_dropped():
    projector = Projector(encoder_size=1, decoder_size=2)
    with torch.no_grad():
        projector.linear1.weight.copy_(torch.tensor([[1.0, 10.0], [-1.0, 0.0]]))
        projector.linear1.bias.zero_()
        projector.linear2.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        projector.linear2.bias.copy_(torch.tensor([0.5, 0.25]))
    hidden = torch.tensor([[[1.0], [2.0], [-3.0], [4.0], [5.0]]])
    # [1 2] -> 1 + 20 = 21 and relu(-1) = 0;  [-3 4] -> -3 + 40 = 37 and 3;  the 5 is left over.
    assert projector(hidden).tolist() == [[[21.5, 0.25], [37.5, 3.25]]]


def test_fewer_frames_than_one_embedding_needs_give_none():
    assert Projector(4, 6)(torch.randn(2, 1, 4)).shape == (2, 0, 6)
